#!/usr/bin/python
"""Create folders on shared storage and set owner, group and mode without following links: the Ansible module `shared_folders`.

`ansible.builtin.file` follows links and works with paths, so a user who owns a parent folder can make root change other files. This
module opens each folder by its descriptor. If an unexpected entry is in the place of a folder, it reports all of them and changes
nothing.

Arguments:
    tree: the folders; module_utils/folder_tree.py describes the keys.
    timeout_s: time limit in seconds, for storage that hangs.

Returns `folders`, the paths that differ.
"""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.folder_tree import apply_tree
from ansible.module_utils.safe_files import within


def main() -> None:
    """Compare the folders, and change them."""
    module = AnsibleModule(
        argument_spec={"tree": {"type": "dict", "required": True}, "timeout_s": {"type": "int", "default": 60}}, supports_check_mode=True
    )
    tree = module.params["tree"]
    try:
        problems, differing = within(module.params["timeout_s"], lambda: apply_tree(tree, check=module.check_mode))
    except KeyError as error:
        module.fail_json(msg=f"this host has no account or group {error}. Fix: primus-bootstrap apply hosts.yaml --phase baseline")
    except TimeoutError as error:
        module.fail_json(msg=f"{tree['root']}: {error}. Fix: check that the shared storage answers on this host, and apply again.")
    if problems:
        listed = "\n".join(f"{one['path']} {one['problem']}. Fix: {one['fix']}" for one in problems)
        module.fail_json(msg=f"Nothing was changed.\n{listed}", problems=problems, folders=differing)
    module.exit_json(changed=bool(differing), problems=[], folders=differing)


if __name__ == "__main__":
    main()
