"""Makes the helper modules beside the tests importable, under importlib's import mode too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
