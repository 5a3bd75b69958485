"""Measurements of models: takes modules, tensors or systems, and does not depend on this library's layer classes."""

from resolvent.analysis.attribution.change import Attribution, Change, Changes, Component
from resolvent.analysis.attribution.feature_distance import feature_kl, feature_mse
from resolvent.analysis.attribution.measure import attribution
from resolvent.analysis.attribution.record import attribution_record
from resolvent.analysis.certificates.certificate import Certificate, certify, certify_logits, verify
from resolvent.analysis.certificates.deviation import Deviation, certify_deviation
from resolvent.analysis.certificates.error_bounds import ErrorBounds, error_bounds
from resolvent.analysis.certificates.gain import BrokenClaim, Gain, NoBound, certified_gain
from resolvent.analysis.certificates.interval import Box, system_box, system_radius
from resolvent.analysis.certificates.interval_certify import LinfCertificate, LinfSettings, certify_linf, linf_radius
from resolvent.analysis.certificates.interval_stages import Affine, Pointwise, Skip
from resolvent.analysis.certificates.interval_time import Pool, Recurrence
from resolvent.analysis.certificates.report import (
    CertifySettings,
    Crossed,
    Sandwich,
    certificate_report,
    check_sandwich,
)
from resolvent.analysis.certificates.smoothing import SmoothingResult, SmoothingSettings, smooth
from resolvent.analysis.generalisation.bound import (
    GeneralisationBound,
    attention_capacity,
    generalisation_bound,
    selective_capacity,
)
from resolvent.analysis.generalisation.lower import rademacher_lower
from resolvent.analysis.generalisation.norms import SelectiveNorms, data_bound, selective_norms
from resolvent.analysis.generalisation.table import scaling_curves, scaling_rows
from resolvent.analysis.generalisation.tracker import NormTracker, SelectiveTensors
from resolvent.analysis.matrices.condition import EigenvectorCondition, eigenvector_condition
from resolvent.analysis.matrices.criss_cross import (
    PseudospectralExtreme,
    pseudospectral_abscissa,
    pseudospectral_radius,
)
from resolvent.analysis.matrices.growth import TransientGrowth, exponential_growth, power_growth
from resolvent.analysis.matrices.kreiss import KreissConstant, kreiss_constant
from resolvent.analysis.matrices.numerical_range import NumericalRange, numerical_range
from resolvent.analysis.matrices.pseudospectrum import Pseudospectrum, pseudospectrum, resolvent_norm
from resolvent.analysis.systems.difference import difference
from resolvent.analysis.systems.frequency_response import dc_gain, frequency_response
from resolvent.analysis.systems.h2 import h2_norm
from resolvent.analysis.systems.hankel import hankel_singular_values
from resolvent.analysis.systems.hidden_attention import hidden_attention
from resolvent.analysis.systems.hinf import hinf_norm
from resolvent.analysis.systems.norm import H2Norm, HinfNorm
from resolvent.analysis.systems.poles import poles, time_constants
from resolvent.analysis.systems.response import impulse_response, step_response
from resolvent.analysis.systems.truncation import Reduction, balanced_truncation
from resolvent.analysis.systems.worst_frequency import WorstFrequency, worst_frequency

__all__ = [
    "Affine", "Attribution", "Box", "BrokenClaim", "Certificate", "CertifySettings", "Change", "Changes", "Component",
    "Crossed", "Deviation", "EigenvectorCondition", "ErrorBounds", "Gain", "GeneralisationBound", "H2Norm", "HinfNorm",
    "KreissConstant", "LinfCertificate", "LinfSettings", "NoBound", "NormTracker", "NumericalRange", "Pointwise",
    "Pool", "PseudospectralExtreme", "Pseudospectrum", "Recurrence", "Reduction", "Sandwich", "SelectiveNorms",
    "SelectiveTensors", "Skip", "SmoothingResult", "SmoothingSettings", "TransientGrowth", "WorstFrequency",
    "attention_capacity", "attribution", "attribution_record", "balanced_truncation", "certificate_report",
    "certified_gain", "certify", "certify_deviation", "certify_linf", "certify_logits", "check_sandwich", "data_bound",
    "dc_gain", "difference", "eigenvector_condition", "error_bounds", "exponential_growth", "feature_kl", "feature_mse",
    "frequency_response", "generalisation_bound", "h2_norm", "hankel_singular_values", "hidden_attention", "hinf_norm",
    "impulse_response", "kreiss_constant", "linf_radius", "numerical_range", "poles", "power_growth",
    "pseudospectral_abscissa", "pseudospectral_radius", "pseudospectrum", "rademacher_lower", "resolvent_norm",
    "scaling_curves", "scaling_rows", "selective_capacity", "selective_norms", "smooth", "step_response", "system_box",
    "system_radius", "time_constants", "verify", "worst_frequency",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
