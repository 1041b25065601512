"""Planner: a query text in, a physical plan out."""

from headrace.planner.physical.explain import explain_logical
from headrace.planner.plan import plan
from headrace.planner.request import Planned, PlanRequest, TableRef

__all__ = ["PlanRequest", "Planned", "TableRef", "explain_logical", "plan"]
