"""What the tests of tuning share lies beside them: made-up trials, made-up studies."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
