"""Run the pinned release of Kubespray, and manage the Nodes of a cluster: labels, marks, drain and quarantine."""
