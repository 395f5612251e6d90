"""Why a candidate is what it is: which elements and which features made it."""
