"""How compiled loops reach arrays and generators without asking Python for them."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array


@intrinsic
def borrowed(typing: Any, array: Any) -> Any:
    """Return an array without its reference count, whose owner must outlive it.

    Else every row that is sliced from it would be counted, which costs more than most rows do, and
    stops threads that count the same array.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kept = context.make_array(signature.args[0])(context, builder, value=arguments[0])
        kept.meminfo = cgutils.get_null_value(kept.meminfo.type)
        kept.parent = cgutils.get_null_value(kept.parent.type)
        return kept._getvalue()

    return array(array), generate


@intrinsic
def array_at(typing: Any, table: Any, place: Any, kind: Any) -> Any:
    """Return the array of some kind whose address, shape and strides stand in a table.

    The table's owner must keep it alive.
    """
    array = kind.instance_type

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        words = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        numbers = [
            builder.load(builder.gep(words, [builder.add(arguments[1], _word(k))]))
            for k in range(1 + 2 * array.ndim)
        ]
        made = context.make_array(array)(context, builder)
        itemsize = context.get_abi_sizeof(context.get_data_type(array.dtype))
        populate_array(
            made,
            data=builder.inttoptr(numbers[0], made.data.type),
            shape=numbers[1 : 1 + array.ndim],
            strides=numbers[1 + array.ndim :],
            itemsize=_word(itemsize),
            meminfo=None,
        )
        return made._getvalue()

    return array(table, types.int64, kind), generate


@intrinsic
def generator_at(typing: Any, address: Any) -> Any:
    """Return the numpy.random.Generator that draws from a bit generator, see `address_of`.

    What Numba makes of its methods draws the very numbers that NumPy draws.
    """
    generator = types.NumPyRandomGeneratorType("generator")
    source = types.NumPyRandomBitGeneratorType("bit_generator")

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        words = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        bits = cgutils.create_struct_proxy(source)(context, builder)
        # The beginning of NumPy's bitgen_t, see numpy/random/bitgen.h.
        for k, name in enumerate(("state", "next_uint64", "next_uint32", "next_double")):
            member = name if name == "state" else f"fnptr_{name}"
            setattr(bits, member, builder.load(builder.gep(words, [_word(k)])))
        bits.state_address = bits.state
        bits.bit_generator = arguments[0]
        bits.parent = cgutils.get_null_value(bits.parent.type)
        made = cgutils.create_struct_proxy(generator)(context, builder)
        made.bit_generator = bits._getvalue()
        made.meminfo = cgutils.get_null_value(made.meminfo.type)
        made.parent = cgutils.get_null_value(made.parent.type)
        return made._getvalue()

    return generator(types.int64), generate


def _word(number: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), number)
