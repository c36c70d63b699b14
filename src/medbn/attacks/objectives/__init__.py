"""What an attack maximises: eq. 5-6 of the MedBN paper, and section 7.3 for dense outputs.

An objective reads the logits of a whole batch, its labels, and a mask of the benign images. What is maximised is about
the benign images, or about the attacker's own, whose poison is to harm later batches. The harm is that of benign images
in every case.

===============================  ===================================================================  ==========
``Targeted``                     make the model predict another class for one image                   eq. 5
``Indiscriminate``               raise the error on all benign images                                 eq. 6
``TargetedPixel``                make the model predict another class for one pixel                   section 7.3
``IndiscriminateSegmentation``   raise the error on all pixels of the benign images                   section 7.3
``FalseAlarm``                   make ``past`` declare a change where there is none                   ours
``HiddenChange``                 keep it from finding a change                                        ours
``WrongMemory``                  make it return to a memory that does not fit                         ours
``Entropy``                      raise the entropy of her own images                                  TePA
``NotchHighEntropy``             the same, but away from their true classes                           RTTDP
``BalancedLowEntropy``           a sure prediction of a wrong class for each, all classes in turn     RTTDP
===============================  ===================================================================  ==========

An objective of your own is a frozen dataclass with a ``value`` to maximise and the ``harm`` that it does. Registered,
it has a name for recipes of the bench and a label in reports:

>>> from dataclasses import dataclass
>>> import torch
>>> @register("confused")
... @dataclass(frozen=True)
... class Confused(Objective):
...     harm_label = "share without a confident prediction"
...
...     def value(self, logits, labels, benign):
...         return -torch.where(benign, logits.softmax(1).square().sum(1), 0.0).sum()
...
...     def harm(self, logits, labels, benign):
...         return (logits[benign].softmax(1).max(1).values < 0.5).float().mean()
>>> Confused.name, Confused.label, Confused.targeted
('confused', 'confused', False)
>>> unregister("confused")
"""

from .base import Objective, available, get, register, unregister
from .image import Indiscriminate, Targeted
from .memory import FalseAlarm, HiddenChange, WrongMemory
from .own import BalancedLowEntropy, Entropy, LabelFreeBalancedLowEntropy, LabelFreeNotchHighEntropy, NotchHighEntropy
from .pixel import IndiscriminateSegmentation, TargetedPixel

__all__ = [
    "BalancedLowEntropy",
    "Entropy",
    "FalseAlarm",
    "HiddenChange",
    "Indiscriminate",
    "IndiscriminateSegmentation",
    "LabelFreeBalancedLowEntropy",
    "LabelFreeNotchHighEntropy",
    "NotchHighEntropy",
    "Objective",
    "Targeted",
    "TargetedPixel",
    "WrongMemory",
    "available",
    "get",
    "register",
    "unregister",
]
