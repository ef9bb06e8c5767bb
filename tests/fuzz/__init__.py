"""Fuzzing of everything that reads bytes from outside: malformed input is an error of ours, and nothing else.

A module `fuzz_NAME` has a function `check(data)`, which must not raise for any bytes, and `seeds()`, inputs to begin
with. `make fuzz` runs them under atheris, guided by coverage; `test_fuzz_targets` runs them on mutated seeds.
"""
