"""A pipeline schedule on real ranks: the list that ``shardlab.simulate.pipeline`` simulates."""

from shardlab.pipeline.cut import cut_gpt
from shardlab.pipeline.executor import Ran, run_schedule
from shardlab.pipeline.message_order import Message, messages

__all__ = ["Message", "Ran", "cut_gpt", "messages", "run_schedule"]
