"""What every rules file uses: the checked config, the static plan, the way to call a program.

Inputs: config, the pin table it names. Outputs: none.
Names for the other files: BUILD (checked config), PINS, SHARDS, TARS, MODEL, PY, SCRIPTS, digest().
"""

from shlex import quote

from shardwright.code_digest import code_digest
from shardwright.config_check import check_config, read_model_file
from shardwright.errors import BuildError
from shardwright.files import find_path
from shardwright.layout import check_root, plan_shards, plan_tars, read_pins
from shardwright.metadata import parse_columns, refuse_unpinned

BASE = Path(workflow.basedir)
PY = quote(sys.executable)
SCRIPTS = quote(str(BASE / "scripts"))

try:
    BUILD = check_config(config, BASE / "config/schema")
    PINS = {pin.name: pin for pin in read_pins(find_path(BUILD["metadata"]["pins"]))}
    SHARDS = {
        shard.key: shard for shard in plan_shards(list(PINS.values()), BUILD["download"]["rows_per_shard"])
    }
    MODEL = read_model_file(BUILD["model"], BASE / "config/schema")
    TARS = plan_tars(BUILD["samples"], sum(pin.rows for pin in PINS.values()))
    parse_columns(BUILD["metadata"]["columns"])
    check_root(Path(BUILD["root"]))
    refuse_unpinned(Path(BUILD["root"]) / "metadata", PINS)
except BuildError as error:
    raise WorkflowError(str(error)) from None


pathvars:
    root=BUILD["root"],


wildcard_constraints:
    model=re.escape(MODEL["name"]),
    name="|".join(re.escape(name) for name in PINS),
    shard=r"\d{8}",
    split="train|val",
    part=r"\d{6}",


def digest(program):
    """The code digest that a rule carries in its params (see scripts/shardwright/code_digest.py)."""
    return code_digest(BASE / "scripts", program)
