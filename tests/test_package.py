"""The public names, and that asking for them is quick."""

import subprocess
import sys

import vitreous as vt


def test_every_public_name_is_there():
    for name in vt.__all__:
        assert getattr(vt, name) is not None
    assert set(vt.__all__) <= set(dir(vt))


def test_functions_are_not_hidden_by_modules_of_their_name():
    from vitreous.anatomy.cost import Cost
    from vitreous.anatomy.trace import Trace

    assert isinstance(vt.cost(vt.ViTConfig.from_name("Ti/16")), Cost)
    assert callable(vt.trace)
    assert vt.Trace is Trace


def test_importing_the_package_or_asking_for_help_does_not_import_torch():
    code = "import sys, vitreous, vitreous.cli.main; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
