"""What windows compute of a key's events. All of these have the one interface that a user's own aggregate has, too."""

from penstock.windows.aggregating.counting import Count
from penstock.windows.aggregating.distinct import ApproxDistinct
from penstock.windows.aggregating.extremes import Max, Min
from penstock.windows.aggregating.interface import Aggregate, Groups
from penstock.windows.aggregating.ordered import Collect, First, Last
from penstock.windows.aggregating.sums import Avg, Sum

__all__ = ["Aggregate", "ApproxDistinct", "Avg", "Collect", "Count", "First", "Groups", "Last", "Max", "Min", "Sum"]
