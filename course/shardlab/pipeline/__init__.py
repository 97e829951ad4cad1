"""Runs a pipeline schedule, as simulated by ``shardlab.simulate.pipeline``, on real ranks."""

from shardlab.pipeline.cut import cut_gpt
from shardlab.pipeline.executor import StepResult, run_schedule
from shardlab.pipeline.message_order import Message, messages

__all__ = ["Message", "StepResult", "cut_gpt", "messages", "run_schedule"]
