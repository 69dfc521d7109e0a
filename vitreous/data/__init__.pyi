from .dataset import DataSet as DataSet
from .dataset import Split as Split
from .open import open_data as open_data
from .source import Source as Source
