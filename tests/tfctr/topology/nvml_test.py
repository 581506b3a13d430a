"""The NVIDIA driver: what its library tells, where there is one."""

import sys
import types

import pytest

from tfctr.topology import NvlinkPeer, nvml
from tfctr.topology.machine import Gpu
from tfctr.topology.reading import Device, Reading


class NVMLError(Exception):
    pass


# Of each GPU its links: bus id of the other end, what that is, version.
LINKS = {
    "00000000:0B:00.0": [("00000000:0A:00.0", 0, 2), ("00000000:0A:00.0", 0, 2)],
    "00000000:0A:00.0": [
        ("00000000:0B:00.0", 0, 2),
        ("00000000:0B:00.0", 0, 2),
        ("00000000:1A:00.0", 2, 6),
        ("00000000:1B:00.0", 2, 7),
        ("00000004:00:01.0", 1, 1),
        ("00000001:00:00.0", 255, 4),
        None,
    ],
}


@pytest.fixture
def driver(monkeypatch):
    """A library that knows two GPUs, as `nvidia-ml-py` has it."""

    def link(handle, index):
        try:
            return LINKS[handle][index]
        except IndexError:
            raise NVMLError("Invalid Argument") from None

    module = types.SimpleNamespace(
        NVML_NVLINK_MAX_LINKS=18,
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(LINKS),
        nvmlDeviceGetHandleByIndex=lambda index: list(LINKS)[index],
        nvmlDeviceGetPciInfo=lambda handle: types.SimpleNamespace(
            busId=handle.encode()
        ),
        nvmlDeviceGetName=lambda handle: "Some GPU",
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=2**34),
        nvmlDeviceGetNvLinkState=lambda handle, index: link(handle, index) is not None,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, index: types.SimpleNamespace(
            busId=link(handle, index)[0]
        ),
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda *at: link(*at)[1],
        nvmlDeviceGetNvLinkVersion=lambda *at: link(*at)[2],
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


@pytest.fixture
def reading():
    """Three GPUs on the bus, of which the driver shows one."""
    addresses = ("0000:0a:00.0", "0000:0c:00.0", "0000:0d:00.0")
    gpus = [
        Device(Gpu(index, address, pci_path=("pci0000:00", address)), near=0b1100)
        for index, address in enumerate(addresses)
    ]
    return Reading(threads=0b1111, gpus=gpus)


def test_the_driver_tells_which_gpus_there_are(driver, reading):
    nvml.add_gpus(reading)
    first, second = reading.parts()["gpus"]
    assert (first.id, first.pci_address) == (0, "0000:0a:00.0")
    assert (first.name, first.memory_bytes) == ("Some GPU", 2**34)
    # Where it is comes from the bus.
    assert (first.cpus, first.pci_path[0]) == ((2, 3), "pci0000:00")
    assert (second.id, second.pci_address) == (1, "0000:0b:00.0")
    assert (second.cpus, second.pci_path) == ((0, 1, 2, 3), ())


def test_links_to_one_peer_add_up(driver, reading):
    nvml.add_gpus(reading)
    first, second = reading.parts()["gpus"]
    assert first.nvlink_peers == (
        NvlinkPeer("gpu", "0000:0b:00.0", 50 * 10**9),
        NvlinkPeer("package", "0004:00:01.0", 20 * 10**9),
        NvlinkPeer("switch", "0000:1a:00.0", 25 * 10**9),
        NvlinkPeer("switch", "0000:1b:00.0", 50 * 10**9),
    )
    assert second.nvlink_peers == (NvlinkPeer("gpu", "0000:0a:00.0", 50 * 10**9),)


def test_without_a_driver_those_on_the_bus_remain(driver, reading):
    def fail():
        raise NVMLError("Driver Not Loaded")

    driver.nvmlInit = fail
    before = list(reading.gpus)
    nvml.add_gpus(reading)
    assert reading.gpus == before


def test_without_the_library_those_on_the_bus_remain(reading, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    before = list(reading.gpus)
    nvml.add_gpus(reading)
    assert reading.gpus == before


def test_a_gpu_that_is_lost_is_left_out(driver, reading):
    def handle(index):
        if index == 0:
            raise NVMLError("GPU is lost")
        return list(LINKS)[index]

    driver.nvmlDeviceGetHandleByIndex = handle
    nvml.add_gpus(reading)
    assert [x.what.pci_address for x in reading.gpus] == ["0000:0a:00.0"]


def test_a_gpu_may_have_no_memory_of_its_own(driver, reading):
    def fail(handle):
        raise NVMLError("Not Supported")

    driver.nvmlDeviceGetMemoryInfo = fail
    nvml.add_gpus(reading)
    assert [x.what.memory_bytes for x in reading.gpus] == [0, 0]


def test_the_driver_is_let_go_when_it_fails(driver, reading):
    done = []
    driver.nvmlShutdown = lambda: done.append(True)
    del driver.nvmlDeviceGetName
    with pytest.raises(AttributeError):
        nvml.add_gpus(reading)
    assert done
