"""The demo as a study: `bitcycle study run demo`."""

from bitcycle.study.base import STUDIES
from bitcycle.study.demo import demo_study

STUDIES.register("demo")(demo_study)
