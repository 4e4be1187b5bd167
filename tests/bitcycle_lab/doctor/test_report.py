"""The text and the JSON of a report."""

import getpass
import os
import socket
from pathlib import Path

import pytest

from bitcycle_lab.doctor import Report
from bitcycle_lab.doctor.check import Check
from bitcycle_lab.doctor.choices import Choice
from bitcycle_lab.doctor.machine import describe_machine
from bitcycle_lab.doctor.report import without_names
from bitcycle_lab.doctor.times import LayerTime


def choice(layer, bits, kernel, why="too small to gain", macs=10_000):
    return Choice(layer=layer, macs=macs, rows=8, bits=bits, kernel=kernel, reason=why)


def report(*checks, choices=(), times=()):
    return Report(
        device="cpu",
        machine=describe_machine(),
        choices=choices or (choice("linear", ("8",), "simulate"),),
        checks=checks,
        times=times,
    )


def test_bits_for_which_all_layers_agree_have_one_row():
    made = report(
        choices=(
            choice("linear", ("4", "8"), "native", "native, 0.5 of the time"),
            choice("linear", ("16",), "simulate", "more than 8 bits"),
            choice("matmul", ("4",), "native", "native, 0.5 of the time"),
            choice("matmul", ("8",), "simulate"),
            choice("matmul", ("16",), "simulate", "more than 8 bits"),
        )
    )
    rows = [line.split() for line in str(made).partition("auto chooses")[2].splitlines()[3:7]]
    assert rows == [
        ["linear", "0.01", "8", "native", "0.5", "of", "the", "time"],
        ["matmul", "0.01", "8", "simulate", "too", "small", "to", "gain"],
        ["all", "4", "native", "0.5", "of", "the", "time"],
        ["16", "simulate", "more", "than", "8", "bits"],
    ]


def test_what_failed_is_named_once():
    failed = Check(by="odd", what="linear", bits="8", outcome="failed", error=7.0, reason="off")
    made = report(failed, failed, Check(by="even", what="linear", bits="8", error=0.5))
    assert made.failed == ("odd",)
    assert made.to_dict()["failed"] == ["odd"]
    assert "FAILED  odd linear 8: off" in str(made)


def test_a_time_that_is_missing_says_why():
    times = (
        LayerTime(layer="linear", kernel="float32", seconds=0.002, num_repeats=10),
        LayerTime(layer="linear", kernel="odd", bits="8", seconds=0.001, num_repeats=10),
        LayerTime(layer="linear", kernel="raising", bits="8", reason="RuntimeError: no"),
    )
    shown = str(report(times=times))
    assert "linear  float32        2.00  10       1.00" in shown
    assert "odd      8     1.00  10       0.50" in shown
    assert "linear, raising: not timed: RuntimeError: no" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot load /home/ada/lib/x.so: no", "cannot load …/x.so: no"),
        ("~/tables/kernels.csv", "…/kernels.csv"),
        ("../ada/kernels.csv", "…/kernels.csv"),
        ("CXX=/opt/gcc/bin/g++", "CXX=…/g++"),
        ("grad_input/grad_weight, 0.5 / float32", "grad_input/grad_weight, 0.5 / float32"),
        (f"{Path.home()}/Jane Doe/x.csv", "…/Jane Doe/x.csv"),
        (f"{os.getcwd()}/a b.csv", "…/a b.csv"),
    ],
)
def test_folders_are_left_out(text, expected):
    assert without_names({"why": [text]}) == {"why": [expected]}


def test_names_of_user_and_machine_are_left_out(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop7.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    found = without_names("user ada on laptop7.example.org, laptop7, adagrad")
    assert found == "user … on …, …, adagrad"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("my tables/of Ada/kernels.csv", "…/kernels.csv"),
        ("/srv/Ada Lovelace/my kernels.csv", "…/my kernels.csv"),
        ("0,1", "0,1"),
    ],
)
def test_of_a_path_in_a_switch_the_last_part_remains(monkeypatch, value, expected):
    monkeypatch.setenv("BITCYCLE_KERNEL_TABLE", value)
    assert describe_machine()["switches"]["BITCYCLE_KERNEL_TABLE"] == expected
