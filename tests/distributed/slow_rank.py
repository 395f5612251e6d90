"""Run ringflow commands one after the other in processes started together, of which the second is slow to get its data."""

import json
import os
import sys
import time

from ringflow.cli import main
from ringflow.train.batches import Feed, TrainingBatch

#: Seconds per batch.
DELAY = 0.03


class SlowFeed(Feed):
    """Takes its time."""

    def next(self, most_events: int) -> TrainingBatch:
        time.sleep(DELAY)
        return super().next(most_events)


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        from ringflow.train import trainer

        trainer.Feed = SlowFeed
    sys.exit(max(main(words) for words in json.loads(sys.argv[1])))
