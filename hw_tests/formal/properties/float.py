"""Arithmetic of an 8-bit format equals an exact integer model, for all operands."""

from hw.float.add import FloatAdd
from hw.float.div import FloatDiv
from hw.float.format import FloatFormat
from hw.float.mul import FloatMul
from hw.float.sqrt import FloatSqrt
from hw_tests.formal import Proof, twin
from hw_tests.mutants import Mutant

# A number is an integer times 2^-B, a product one times 2^-2B. `pack` rounds one times 2^-(B+k) to
# nearest even; what lies below its last bit is in that bit.
MODEL = """
  localparam E = EXPONENT, F = FRACTION, FLUSH = FLUSHED, SIZE = F + (1 << E) - 1;
  localparam INF = ((1 << E) - 1) << F, NAN = INF | (1 << F - 1), B = (1 << E - 1) + F - 2;
  localparam WIDTH = 2 * SIZE + F + 4;
  function [7:0] pack(input sign, input [WIDTH-1:0] number, input integer k);
    integer e;
    reg [WIDTH-1:0] quotient, below, half;
    begin
      e = 1;
      for (integer i = 2; i < 1 << E; i = i + 1) if ((number >> (k + i + F - 1)) != 0) e = i;
      quotient = number >> (k + e - 1);
      below = number - (quotient << (k + e - 1));
      half = {{WIDTH-1{1'b0}}, 1'b1} << (k + e - 1) >> 1;
      if (half != 0 && (below > half || (below == half && quotient[0]))) quotient = quotient + 1;
      quotient = quotient + ((e - 1) << F);
      if (FLUSH && (number >> (k + F)) == 0) quotient = 0;
      pack = {sign, quotient >= INF ? INF[6:0] : quotient[6:0]};
    end
  endfunction
  function [F:0] digits(input [7:0] x);
    digits = x[6:F] == 0 ? (FLUSH ? 0 : x[F-1:0]) : {1'b1, x[F-1:0]};
  endfunction
  function integer places(input [7:0] x);
    places = x[6:F] == 0 ? 0 : x[6:F] - 1;
  endfunction
  function [SIZE-1:0] size(input [7:0] x);
    size = digits(x) << places(x);
  endfunction
  function is_nan(input [7:0] x);
    is_nan = x[6:0] > INF;
  endfunction
  function is_inf(input [7:0] x);
    is_inf = x[6:0] == INF;
  endfunction
  // The operands do not change, so the pipeline is full after its latency.
  (* anyconst *) reg [7:0] a, b;
  reg [5:0] age = 0;
  always @(posedge clk) age <= age + !age[5];
  wire zero_a = size(a) == 0, zero_b = size(b) == 0;
  reg [7:0] y;
"""
E4M3 = FloatFormat(exponent_bits=4, fraction_bits=3)
E4M3_FLUSHED = FloatFormat(exponent_bits=4, fraction_bits=3, subnormals=False)
E5M2 = FloatFormat(exponent_bits=5, fraction_bits=2)
HOLD = """
  a_operands: assume property (i_a == a@ && i_valid);
"""
END = """
  result: assert property (age < LATENCY || o_y == y);
  in_time: assert property (age != LATENCY - 1 || !o_valid);
  answered: assert property (age < LATENCY || o_valid);
  finite: cover property (age == LATENCY && o_y[6:0] > 7'h10 && o_y[6:0] < 7'h70);
"""

ADD = """
  wire [SIZE:0] left = size(a), right = size(b);
  wire [SIZE:0] sum = a[7] == b[7] ? left + right : left > right ? left - right : right - left;
  wire sign = sum == 0 ? a[7] && b[7] : left > right ? a[7] : b[7];
  always @*
    if (is_nan(a) || is_nan(b) || (is_inf(a) && is_inf(b) && a[7] != b[7])) y = NAN;
    else if (is_inf(a)) y = a;
    else if (is_inf(b)) y = b;
    else y = pack(sign, sum, 0);
"""
MUL = """
  wire sign = a[7] ^ b[7];
  always @*
    if (is_nan(a) || is_nan(b) || (is_inf(a) && zero_b) || (zero_a && is_inf(b))) y = NAN;
    else if (is_inf(a) || is_inf(b)) y = {sign, INF[6:0]};
    else y = pack(sign, {{SIZE{1'b0}}, size(a)} * size(b), B);
"""
DIV = """
  // Digits have a quotient of at least F + 2 bits, and a bit for what lies below. The difference of
  // places is at least 2 - (1 << E).
  localparam MORE = 2 * F + 2, LEAST = (1 << E) - 2;
  wire sign = a[7] ^ b[7];
  wire [F+MORE:0] dividend = {digits(a), {MORE{1'b0}}};
  wire [F+MORE:0] quotient = dividend / digits(b);
  wire more = dividend % digits(b) != 0;
  always @*
    if (is_nan(a) || is_nan(b) || (is_inf(a) && is_inf(b)) || (zero_a && zero_b)) y = NAN;
    else if (is_inf(a) || zero_b) y = {sign, INF[6:0]};
    else if (is_inf(b)) y = {sign, 7'd0};
    else y = pack(sign, {quotient, more} << LEAST + places(a) - places(b), MORE + 1 + LEAST - B);
"""
ROOT = """
  // The root is claimed, not computed: what is free is assumed to be it.
  wire [15:0] q;
  wire [31:0] square = {size(a), 13'd0};
  wire [39:0] least = q * q;
  a_root: assume property (least <= square && square < least + 2 * q + 1);
  always @*
    if (is_nan(a) || (a[7] && !zero_a)) y = NAN;
    else if (is_inf(a)) y = a;
    else y = pack(a[7], {q, least != square}, 3);
"""


def equal(operator, name: str, model: str, faults: dict[FloatFormat, Mutant]) -> list[Proof]:
    proofs = []
    for shape, fault in faults.items():
        latency = operator(format=shape).latency
        bits = {"EXPONENT": shape.exponent_bits, "FRACTION": shape.fraction_bits}
        text = MODEL
        for word, number in (bits | {"FLUSHED": int(not shape.subnormals)}).items():
            text = text.replace(word, str(number))
        label = f"e{shape.exponent_bits}m{shape.fraction_bits}"
        kind = "kept" if shape.subnormals else "flushed"
        hold = HOLD.replace("@", " && i_b == b" if "b" in operator.operands else "")
        proofs.append(
            Proof(
                name=f"{label}-{name}-{kind}",
                component=lambda shape=shape: operator(format=shape),
                text=text + hold + model + END.replace("LATENCY", str(latency)),
                twins={
                    "result": fault,
                    "answered": twin("hw/float/operator.py", "m.d.sync += later.eq(valid)", "pass"),
                    "in_time": twin(
                        "hw/float/operator.py",
                        "for cycle in range(self.latency):",
                        "for cycle in range(self.latency - 1):",
                    ),
                },
                bound=latency + 2,
                limit_s=90,
                reach=latency + 2,
                reductions="complete: a pipeline without feedback; operands that do not change",
            )
        )
    return proofs


STICKY = twin(
    "hw/float/mul.py",
    "word = cat(shifted[:low_bits].any() | lost, shifted[low_bits:])",
    "word = cat(shifted[:low_bits].any(), shifted[low_bits:])",
)
STICKY_FLUSHED = twin(
    "hw/float/mul.py",
    "word = cat(product[: bits - 2].any(), product[bits - 2 :])",
    "word = cat(C(0, 1), product[bits - 2 :])",
)
ALIGNED = twin(
    "hw/float/add.py",
    'aligned = register(m, (extended >> distance) | lost, "aligned", cycles)',
    'aligned = register(m, extended >> distance, "aligned", cycles)',
)
LOST = twin(
    "hw/float/div.py",
    'word = register(m, cat(lost, quotient), "word")',
    'word = register(m, cat(C(0, 1), quotient), "word")',
)
SIGN = twin("hw/float/sqrt.py", "sign=a.sign & a.zero,", "sign=C(0, 1),")

PROOFS = [
    *equal(FloatAdd, "add", ADD, {E4M3: ALIGNED, E4M3_FLUSHED: ALIGNED, E5M2: ALIGNED}),
    *equal(FloatMul, "mul", MUL, {E4M3: STICKY, E4M3_FLUSHED: STICKY_FLUSHED, E5M2: STICKY}),
    *equal(FloatDiv, "div", DIV, {E4M3: LOST, E4M3_FLUSHED: LOST, E5M2: LOST}),
    *equal(FloatSqrt, "sqrt", ROOT, {E4M3: SIGN, E4M3_FLUSHED: SIGN}),
]
