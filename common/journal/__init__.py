"""For whoever follows a pipeline's checkpoints and applies them: what to apply next, to which table, and what is then
published.

Nothing here knows where the rows go. The follower (the Spark writer; a feed may be another) has a progress of its own,
which its publications name. It reads the journal by `view.JournalView`, takes the next `batches.Batch` of the chain,
makes `plan.TableStep`s of it, applies them in its sink, and puts a record made by `publishing.publication`.
"""
