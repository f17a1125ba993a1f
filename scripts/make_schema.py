"""Write profstack/report/report.schema.json anew, from the schema of the report in profstack.

python scripts/make_schema.py
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SCHEMA = CHECKOUT / "profstack" / "report" / "report.schema.json"


def main() -> int:
    """Write the file."""
    sys.path.insert(0, str(CHECKOUT))
    from profstack.storage.schema.json_schema import schema_text

    SCHEMA.write_text(schema_text(), encoding="utf-8")
    sys.stdout.write(f"Wrote {SCHEMA.relative_to(CHECKOUT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
