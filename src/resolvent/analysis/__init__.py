"""What models do, measured: it is handed modules, tensors or systems, never a class of this library's own layers."""

from resolvent.analysis.attribution import attribution
from resolvent.analysis.attribution_record import attribution_record
from resolvent.analysis.certificate import Certificate, certify, certify_logits, verify
from resolvent.analysis.certificate_report import CertifySettings, Crossed, Sandwich, certificate_report, check_sandwich
from resolvent.analysis.change import Attribution, Change, Changes, Component
from resolvent.analysis.condition import EigenvectorCondition, eigenvector_condition
from resolvent.analysis.criss_cross import PseudospectralExtreme, pseudospectral_abscissa, pseudospectral_radius
from resolvent.analysis.difference import difference
from resolvent.analysis.error_bounds import ErrorBounds, error_bounds
from resolvent.analysis.feature_distance import feature_kl, feature_mse
from resolvent.analysis.frequency_response import dc_gain, frequency_response
from resolvent.analysis.gain import BrokenClaim, Gain, NoBound, certified_gain
from resolvent.analysis.generalisation import (
    GeneralisationBound,
    attention_capacity,
    generalisation_bound,
    selective_capacity,
)
from resolvent.analysis.generalisation_lower import rademacher_lower
from resolvent.analysis.generalisation_norms import SelectiveNorms, data_bound, selective_norms
from resolvent.analysis.generalisation_table import scaling_curves, scaling_rows
from resolvent.analysis.generalisation_tracker import NormTracker, SelectiveTensors
from resolvent.analysis.growth import TransientGrowth, exponential_growth, power_growth
from resolvent.analysis.h2 import h2_norm
from resolvent.analysis.hankel import hankel_singular_values
from resolvent.analysis.hinf import hinf_norm
from resolvent.analysis.interval import Box, system_box, system_radius
from resolvent.analysis.interval_certify import LinfCertificate, LinfSettings, certify_linf, linf_radius
from resolvent.analysis.interval_stages import Affine, Pointwise, Pool, Recurrence, Skip
from resolvent.analysis.kreiss import KreissConstant, kreiss_constant
from resolvent.analysis.norm import H2Norm, HinfNorm
from resolvent.analysis.numerical_range import NumericalRange, numerical_range
from resolvent.analysis.poles import poles, time_constants
from resolvent.analysis.pseudospectrum import Pseudospectrum, pseudospectrum, resolvent_norm
from resolvent.analysis.response import impulse_response, step_response
from resolvent.analysis.smoothing import SmoothingResult, SmoothingSettings, smooth
from resolvent.analysis.truncation import Reduction, balanced_truncation
from resolvent.analysis.worst_frequency import WorstFrequency, worst_frequency

__all__ = [
    "Affine",
    "Attribution",
    "Box",
    "BrokenClaim",
    "Certificate",
    "CertifySettings",
    "Change",
    "Changes",
    "Component",
    "Crossed",
    "EigenvectorCondition",
    "ErrorBounds",
    "Gain",
    "GeneralisationBound",
    "H2Norm",
    "HinfNorm",
    "KreissConstant",
    "LinfCertificate",
    "LinfSettings",
    "NoBound",
    "NormTracker",
    "NumericalRange",
    "Pointwise",
    "Pool",
    "PseudospectralExtreme",
    "Pseudospectrum",
    "Recurrence",
    "Reduction",
    "Sandwich",
    "SelectiveNorms",
    "SelectiveTensors",
    "Skip",
    "SmoothingResult",
    "SmoothingSettings",
    "TransientGrowth",
    "WorstFrequency",
    "attention_capacity",
    "attribution",
    "attribution_record",
    "balanced_truncation",
    "certificate_report",
    "certified_gain",
    "certify",
    "certify_linf",
    "certify_logits",
    "check_sandwich",
    "data_bound",
    "dc_gain",
    "difference",
    "eigenvector_condition",
    "error_bounds",
    "exponential_growth",
    "feature_kl",
    "feature_mse",
    "frequency_response",
    "generalisation_bound",
    "h2_norm",
    "hankel_singular_values",
    "hinf_norm",
    "impulse_response",
    "kreiss_constant",
    "linf_radius",
    "numerical_range",
    "poles",
    "power_growth",
    "pseudospectral_abscissa",
    "pseudospectral_radius",
    "pseudospectrum",
    "rademacher_lower",
    "resolvent_norm",
    "scaling_curves",
    "scaling_rows",
    "selective_capacity",
    "selective_norms",
    "smooth",
    "step_response",
    "system_box",
    "system_radius",
    "time_constants",
    "verify",
    "worst_frequency",
]
