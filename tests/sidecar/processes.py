"""Only for tests/gms, until they import these from tests.support themselves."""

from tests.support.children import Child as Child
from tests.support.children import stay as stay
from tests.support.descriptors import descriptors_left as descriptors_left
from tests.support.descriptors import no_descriptor_leaks as no_descriptor_leaks
from tests.support.descriptors import open_descriptors as open_descriptors
