#!/usr/bin/python
"""Bring folders on shared storage to their owner, group and mode without following a link: the Ansible module `shared_folders`.

`ansible.builtin.file` follows links and works by path, which a user who owns a folder above can turn against root. This module opens each
folder by its descriptor. What must not be there is refused by name, all of it at once, before anything is changed.

Arguments:
    tree: what is wanted; its keys are described in module_utils/folder_tree.py.
    timeout_s: seconds for all of it; storage that hangs does not hold the run.

Returns `folders`, the paths that differ. Where anything must not be there it fails, and nothing was changed.
"""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.folder_tree import bring
from ansible.module_utils.safe_files import within


def main() -> None:
    """Read the arguments, look, change, and report."""
    module = AnsibleModule(
        argument_spec={"tree": {"type": "dict", "required": True}, "timeout_s": {"type": "int", "default": 60}}, supports_check_mode=True
    )
    tree = module.params["tree"]
    try:
        problems, differing = within(module.params["timeout_s"], lambda: bring(tree, check=module.check_mode))
    except KeyError as error:
        module.fail_json(msg=f"this host does not know {error}. Fix: apply the phase baseline to it first.")
    except TimeoutError as error:
        module.fail_json(msg=f"{tree['root']}: {error}. Fix: see that the shared storage answers on this host, and apply again.")
    if problems:
        said = "\n".join(f"{one['path']} {one['problem']}. Fix: {one['fix']}" for one in problems)
        module.fail_json(msg=f"Nothing was changed.\n{said}", problems=problems, folders=differing)
    module.exit_json(changed=bool(differing), problems=[], folders=differing)


if __name__ == "__main__":
    main()
