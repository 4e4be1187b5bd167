from bitcycle.formats.catalogue import Format as Format
from bitcycle.formats.catalogue import list_formats as list_formats
from bitcycle.formats.catalogue import parse_format as parse_format
from bitcycle.formats.rounding import round_to as round_to
