# SPDX-License-Identifier: GPL-2.0
"""The driver behind an IOMMU, on Debian's kernel: its DMA layer joins the elements of a list to longer ones, and takes
each address from the device when the memory is unmapped.

QEMU emulates Intel's IOMMU. ib_imitate_dma maps for a PCI device behind it.
"""

import pytest
from counters import balanced
from faults import close_all
from test_device_kinds import traffic
from test_stock_kernels import boot_stock, with_nis

PARAMETERS = "/sys/module/ib_imitate_dma/parameters"
LONG = pytest.mark.long
DEVICES = ["-device", "intel-iommu", "-device", "pci-testdev"]
# Limits of an element: the kernel's default for PCI devices; as long as a transfer; narrow windows.
LIMITS = {"default": "", "whole": "segment=0x100000", "windows": "segment=0x100000 boundary=0x7fff"}


@pytest.fixture(scope="module", params=["whole", *(pytest.param(name, marks=LONG) for name in ("default", "windows"))])
def pair(request):
    """Provides two nodes with an IOMMU."""
    with boot_stock(
        "6.12", f"iommu-{request.param}", test_modules=["ib_imitate_dma", "ib_imitate"],
        dma=f"iommu=1 {LIMITS[request.param]}", memory=1024, append="intel_iommu=on iommu.strict=1",
        more=lambda number: DEVICES,
    ) as nodes:  # fmt: skip
        yield nodes


@pytest.fixture
def nodes(pair):
    with with_nis(pair):
        yield pair


def parameter(node, name):
    return int(node.guest.check(f"cat {PARAMETERS}/{name}"))


def test_traffic(nodes):
    """All sizes and shapes are transferred, with elements as the DMA layer makes them. Each unmap is in time."""
    a, b = nodes
    traffic(a, b)
    balanced(a, b)
    for node in nodes:
        assert parameter(node, "joined") > 0
        assert parameter(node, "violations") == 0


def test_mappings_that_fail(nodes):
    """A transfer whose memory cannot be mapped waits and is repeated. None fails, and no connection ends."""
    a, b = nodes
    # A new connection would need mappings for its message buffers.
    a.ping(b)
    for node in nodes:
        node.mark_log()
        node.guest.check(f"echo 5 >{PARAMETERS}/fail_nth")
    r = a.traffic(b, op="mix", size=262144, count=50, conc=8, timeout=120)
    assert not r["errors"] and not r["verify_errors"], r
    for node in nodes:
        node.guest.check(f"echo 0 >{PARAMETERS}/fail_nth")
        assert parameter(node, "failed") > 0
        assert "connection closed" not in node.log()
        assert parameter(node, "violations") == 0
    close_all(a, b)
    a.ping(b)
