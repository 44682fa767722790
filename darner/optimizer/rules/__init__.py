"""The rules, one file per family; importing this fills the table."""

from . import activations as activations
from . import algebra as algebra
from . import attention as attention
from . import attention_masks as attention_masks
from . import attention_operands as attention_operands
from . import broadcasts as broadcasts
from . import contraction as contraction
from . import convolution as convolution
from . import epilogues as epilogues
from . import identities as identities
from . import indexing as indexing
from . import inference as inference
from . import joining as joining
from . import losses as losses
from . import norms as norms
from . import reductions as reductions
from . import rope as rope
from . import rope_forms as rope_forms
from . import shapes as shapes
from . import softmax as softmax
from . import statistics as statistics
from . import strength as strength
from . import views as views
