"""The pool: which of many models should be awake next. It only wishes.

The lock of each model decides which of its engines may be awake, and the ledger of device memory decides which of them
fit. So no policy here, and no fault of it, can break the one claim: with a pool that is killed, stopped or wrong,
nothing swaps, and every engine serves on. `entries.py` says what there is to wish for, `client.py` is for a door,
`observer.py` for people and programs that look. How it is made: docs/inside/many.md.
"""
