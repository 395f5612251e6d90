"""EDM4hep files: read as events of the schema, made into datasets, and written with candidates."""

from ringflow.data.edm4hep.profile import Profile, load_profile, profile_names
from ringflow.data.edm4hep.read import Edm4hepFile, convert_edm4hep, open_edm4hep
from ringflow.data.edm4hep.write import read_record, write_edm4hep

__all__ = [
    "Edm4hepFile",
    "Profile",
    "convert_edm4hep",
    "load_profile",
    "open_edm4hep",
    "profile_names",
    "read_record",
    "write_edm4hep",
]
