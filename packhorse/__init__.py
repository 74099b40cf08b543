"""What the stages of packhorse agree on: ids, records, settings, the model store.

Nothing here imports a stage, torch or kubernetes, so that a server image can carry this
package alone.
"""

__version__ = "0.1.0"
