"""Modules of torch, published and adopted: without a server, on the memory itself (the client is tested with one)."""

import ctypes
import gc
import warnings
from collections.abc import Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from gms.client import Lost  # noqa: E402
from gms.layout import Layout, check, decode, encode  # noqa: E402
from gms.memory.host import HostMemory  # noqa: E402
from gms.memory.host_device import create_device  # noqa: E402
from gms.torch import CannotPublish, DoesNotFit, adopt, publish  # noqa: E402
from gms.torch_views import raw_bytes, torch_device, view  # noqa: E402
from tests.gms.live import House  # noqa: E402

pytestmark = pytest.mark.torch
nn: Any = torch.nn
MIB = 1 << 20


class Here:
    """Writer and reader in one, straight on host memory."""

    def __init__(self, memory: HostMemory) -> None:
        self.memory, self.device, self.granularity = memory, memory.device, memory.granularity
        self.slabs: list[tuple[int, int, Any]] = []
        self.on_create: Any = lambda: None

    def create(self, size: int) -> int:
        self.on_create()
        handle = self.memory.create(size)
        address = self.memory.reserve(size)
        self.memory.map(address, handle, size=size, writable=True)
        self.slabs.append((address, size, handle))
        return len(self.slabs) - 1

    def keep_mapped(self) -> None:
        pass

    def address(self, slab: int) -> int:
        return self.slabs[slab][0]

    def commit(self, layout: Layout) -> "Here":
        self.layout = decode(encode(layout))
        check(self.layout, [size for _, size, _ in self.slabs])
        for address, size, handle in self.slabs:
            self.memory.unmap(address, size)
            self.memory.map(address, handle, size=size, writable=False)
        return self


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    tmp_path.chmod(0o700)
    create_device("0", 256 * MIB, tmp_path)
    memory = HostMemory("0", tmp_path)
    yield Here(memory)
    gc.collect()
    memory.close()


class Counted(nn.Module):
    """A bit of everything that hangs on modules."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight
        self.qkv = nn.Parameter(torch.randn(24, 8))
        self.q, self.k = self.qkv[:8], self.qkv.detach()[8:16].t()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.randn(3).to(torch.bfloat16))
        self.register_buffer("cache", torch.zeros(4, 4), persistent=False)
        self.register_buffer("nothing", None)
        self.fp8 = nn.Parameter(torch.randn(6, 4).to(torch.float8_e4m3fn), requires_grad=False)
        self.packed = nn.Parameter(torch.randint(0, 255, (5, 3), dtype=torch.uint8), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 8))
        self.steps = torch.tensor(3)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.same = self.layers[0]

    def forward(self, tokens: Any) -> Any:
        hidden = self.embed(tokens) @ self.qkv[:8].t()
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden)) + self.scale.float().sum()


def meta() -> Any:
    with torch.device("meta"):
        return Counted()


def tensors_of(module: Any) -> dict[str, Any]:
    found = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    return found | {"steps": module.steps, "q": module.q, "k": module.k}


def test_an_adopted_module_has_the_same_tensors_and_computes_the_same(here: Here) -> None:
    torch.manual_seed(1)
    model = Counted().eval()
    before = {name: tensor.detach().clone() for name, tensor in tensors_of(model).items()}
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])[:, 0]
    said = model(tokens)
    reader = publish(model, here, private=["*.num_batches_tracked", "*.running_*"])
    assert torch.equal(model(tokens), said), "the publisher's module goes on, from the shared memory"
    adopted = adopt(meta(), reader).eval()
    assert torch.equal(adopted(tokens), said)
    for name, tensor in tensors_of(adopted).items():
        assert not tensor.is_meta
        assert tensor.dtype == before[name].dtype
        assert tensor.stride() == before[name].stride()
        assert tensor.numel() == 0 or torch.equal(raw(tensor), raw(before[name])), name


def raw(tensor: Any) -> Any:
    return tensor.detach().contiguous().view(torch.uint8) if tensor.dim() else tensor


def test_nothing_is_copied_and_ties_stay_tied_also_the_publishers(here: Here) -> None:
    reader = publish(published := Counted(), here)
    model, other = adopt(meta(), reader), adopt(meta(), reader)
    for each in (published, model):
        assert each.head.weight is each.embed.weight
        assert each.q.data_ptr() == each.qkv.data_ptr()
        assert each.k.data_ptr() == each.qkv.data_ptr() + 8 * 8 * 4
    assert model.same is model.layers[0]
    assert model.k.untyped_storage().data_ptr() == model.qkv.untyped_storage().data_ptr()
    start, size, _ = here.slabs[0]
    for name in ("embed.weight", "qkv", "fp8", "packed", "norm.weight", "layers.1.bias"):
        assert model.get_parameter(name).data_ptr() == other.get_parameter(name).data_ptr()
        assert start <= model.get_parameter(name).data_ptr() < start + size


def test_what_is_written_at_run_time_becomes_a_private_copy(here: Here) -> None:
    reader = publish(Counted(), here, private=["*.running_mean", "*.num_batches_tracked"])
    one, other = adopt(meta(), reader), adopt(meta(), reader)
    for model in (one, other):
        for tensor in (model.cache, model.steps, model.norm.running_mean, model.norm.num_batches_tracked):
            tensor.add_(1)  # in shared memory this would end the process
    assert int(one.steps) == 4
    assert one.cache.data_ptr() != other.cache.data_ptr()


def test_a_private_tensor_stays_where_it_was_in_the_publisher(here: Here) -> None:
    model = Counted()
    was = model.cache.data_ptr()
    publish(model, here)
    assert model.cache.data_ptr() == was


def test_an_attribute_can_be_shared_and_a_reader_can_take_more_copies(here: Here) -> None:
    model = Counted()
    model.table = torch.arange(10)
    reader = publish(model, here, shared=["table"])
    empty = meta()
    empty.table = torch.arange(10, device="meta")
    adopted = adopt(empty, reader, private=["embed.*"])
    start, size, _ = here.slabs[0]
    assert start <= adopted.table.data_ptr() < start + size
    assert not start <= adopted.embed.weight.data_ptr() < start + size
    assert adopted.embed.weight is adopted.head.weight


def test_sources_are_let_go_of_slab_by_slab(here: Here) -> None:
    """Peak memory while publishing is the weights and one slab.

    Each source lies in a mapping of its own, so that the kernel shows when it goes: what `malloc` was given back it may
    keep, by what was freed in this process before.
    """
    model = nn.Sequential(*[nn.Linear(1024, 2048, bias=False, device="meta") for _ in range(8)])  # 8 MiB each
    for layer in model:
        source = torch.frombuffer(mmap(-1, 8 * MIB, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype=torch.float32)
        layer.weight = nn.Parameter(source.view(2048, 1024).fill_(1))
    del layer, source
    left: list[int] = []
    private: list[int] = []

    def on_create() -> None:
        ends = [(start, start + size) for start, size, _ in here.slabs]  # where a source was, a slab may be mapped
        at = [layer.weight.data_ptr() for layer in model]
        left.append(sum(not any(start <= one < end for start, end in ends) for one in at))
        private.append(resident("RssAnon"))

    here.on_create = on_create
    publish(model, here, slab_bytes=8 * MIB)
    assert left == [8, 7, 6, 5, 4, 3, 2, 1]
    assert private[-1] <= private[0] - 6 * 8 * MIB


def test_views_apart_in_one_storage_do_not_keep_what_lies_between(here: Here) -> None:
    model = nn.Module()
    big = torch.arange(4 * MIB, dtype=torch.uint8)
    model.first, model.last = big[:8], big[-8:]
    model.register_buffer("small", torch.ones(1))
    reader = publish(model, here, shared=["*"])
    assert reader.layout.slabs == (2 * MIB,)
    empty = nn.Module()
    empty.first, empty.last = torch.empty(8, dtype=torch.uint8), torch.empty(8, dtype=torch.uint8)
    empty.register_buffer("small", torch.ones(1))
    assert torch.equal(adopt(empty, reader).last, big[-8:])


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (lambda: torch.empty(3, device="meta"), "meta device"),
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.randn(3, dtype=torch.complex64).conj(), "resolve_conj"),
        (lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8), "not simply bytes"),
    ],
)
def test_what_cannot_be_shared_is_named_before_anything_is_moved(here: Here, tensor: Any, says: str) -> None:
    model = Counted()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.odd = tensor()
    was = model.qkv.data_ptr()
    with pytest.raises(CannotPublish, match=f"odd.*{says}"):
        publish(model, here)
    assert (model.qkv.data_ptr(), here.slabs) == (was, [])


def test_a_module_that_was_never_run_is_refused_if_it_has_no_shapes(here: Here) -> None:
    with pytest.raises(CannotPublish, match="has no shape yet"):
        publish(nn.LazyLinear(3), here)


def test_another_module_is_refused_and_unchanged(here: Here) -> None:
    reader = publish(Counted(), here)
    for change, says in (
        (lambda module: setattr(module, "extra", nn.Parameter(torch.empty(1, device="meta"))), "extra was not"),
        (lambda module: delattr(module, "fp8"), "fp8 was published, and the module has none"),
        (lambda module: delattr(module, "norm"), "no part 'norm'"),
        (lambda module: setattr(module, "qkv", nn.Parameter(torch.empty(8, 24, device="meta"))), "qkv: a parameter"),
    ):
        model = meta()
        change(model)
        with pytest.raises(DoesNotFit, match=says):
            adopt(model, reader)
        assert model.embed.weight.is_meta


def test_a_module_can_take_the_form_in_which_it_was_published(here: Here) -> None:
    """A loader repacks: other shapes, tensors that come and go, a parameter that becomes a buffer."""
    model = Counted()
    model.qkv = nn.Parameter(torch.randn(3, 64))
    del model.fp8, model.q, model.k
    model.layers[1].register_parameter("extra", nn.Parameter(torch.ones(2)))
    del model.packed
    model.register_buffer("packed", torch.ones(2))
    reader = publish(model, here)
    adopted = adopt(meta(), reader, as_published=True)
    assert adopted.qkv.shape == (3, 64)
    assert not hasattr(adopted, "fp8")
    assert not hasattr(adopted, "q")
    assert torch.equal(adopted.layers[1].extra, torch.ones(2))
    assert "packed" in dict(adopted.named_buffers())
    assert "packed" not in dict(adopted.named_parameters())


class Special(nn.Parameter):
    pass


def test_a_parameters_class_and_what_hangs_on_it_stay(here: Here) -> None:
    def made(device: str) -> Any:
        module = nn.Module()
        module.weight = Special(torch.ones(3, device=device), requires_grad=False)
        module.weight.loader = "how it is loaded"
        return module

    adopted = adopt(made("meta"), publish(made("cpu"), here))
    assert type(adopted.weight) is Special
    assert adopted.weight.loader == "how it is loaded"
    assert not adopted.weight.requires_grad


def test_an_address_becomes_a_tensor_and_its_block_is_given_back() -> None:
    memory = ctypes.create_string_buffer(bytes(range(64)))
    tensor = raw_bytes(ctypes.addressof(memory), 64, torch_device("host:0"))
    assert tensor.tolist() == list(range(64))
    assert view(tensor, 4, torch.int16, (2, 2), (2, 1)).shape == (2, 2)
    tensor[0] = 9
    assert memory[0] == b"\x09"
    before = resident("VmRSS")
    for _ in range(200_000):
        raw_bytes(ctypes.addressof(memory), 64, tensor.device)
    assert resident("VmRSS") - before < 8 * MIB


def resident(what: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {what}")


def test_through_a_real_server_a_module_is_published_slept_on_and_adopted(house: House) -> None:
    model = Counted().eval()
    tokens = torch.arange(5)
    said = model(tokens)
    with house.client("loader").write(10) as writer:
        mine = publish(model, writer, private=["*.running_*", "*.num_batches_tracked"])
    assert torch.equal(model(tokens), said), "the publisher's views are good after the commit"
    reader = house.client("other").read(10)
    adopted = adopt(meta(), reader).eval()
    assert torch.equal(adopted(tokens), said)
    reader.sleep()
    reader.wake(10)
    assert torch.equal(adopted(tokens), said), "and after a nap, at the same addresses"
    mine.close()


def test_what_was_moved_stays_good_when_the_commit_fails(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(8, 8)
    before = model.weight.detach().clone()
    with pytest.raises(Lost), house.client("loader").write(10) as writer:
        create = writer.create

        def create_and_kill(size: int) -> int:
            slab = create(size)
            house.kill()
            return slab

        monkeypatch.setattr(writer, "create", create_and_kill)
        publish(model, writer)
    assert torch.equal(model.weight, before)


def test_a_module_without_tensors_cannot_be_published(here: Here) -> None:
    with pytest.raises(CannotPublish, match="no tensors"):
        publish(nn.Module(), here)
