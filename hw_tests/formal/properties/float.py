"""Arithmetic of an 8-bit format equals an exact integer model, for all operands."""

from hw.float.add import FloatAdd
from hw.float.format import FloatFormat
from hw.float.mul import FloatMul
from hw.float.sqrt import FloatSqrt
from hw_tests.formal import Proof, twin

# A number is an integer times 2^-9, a product one times 2^-18. `pack` rounds one times 2^-(9+k) to
# nearest even; what lies below its last bit is in that bit.
MODEL = """
  function [7:0] pack(input sign, input [47:0] number, input [5:0] k);
    reg [5:0] e;
    reg [47:0] quotient, below, half;
    begin
      e = 1;
      for (integer i = 2; i < 26; i = i + 1) if ((number >> (k + i + 2)) != 0) e = i;
      quotient = number >> (k + e - 1);
      below = number - (quotient << (k + e - 1));
      half = (48'd1 << (k + e - 1)) >> 1;
      if (half != 0 && (below > half || (below == half && quotient[0]))) quotient = quotient + 1;
      quotient = quotient + ((e - 1) << 3);
      if (TINY) quotient = 0;
      pack = {sign, quotient >= 8'h78 ? 7'h78 : quotient[6:0]};
    end
  endfunction
  function [17:0] size(input [7:0] x);
    size = x[6:3] == 0 ? SUBNORMAL : {1'b1, x[2:0]} << (x[6:3] - 1);
  endfunction
  function is_nan(input [7:0] x);
    is_nan = x[6:0] > 7'h78;
  endfunction
  function is_inf(input [7:0] x);
    is_inf = x[6:0] == 7'h78;
  endfunction
  // The operands do not change, so the pipeline is full after its latency.
  (* anyconst *) reg [7:0] a, b;
  reg [5:0] age = 0;
  always @(posedge clk) age <= age + !age[5];
  wire zero_a = size(a) == 0, zero_b = size(b) == 0;
  reg [7:0] y;
"""
KEPT = {"SUBNORMAL": "x[2:0]", "TINY": "0"}
FLUSHED = {"SUBNORMAL": "0", "TINY": "number < (48'd8 << k)"}
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
  wire [17:0] left = size(a), right = size(b);
  wire [17:0] sum = a[7] == b[7] ? left + right : left > right ? left - right : right - left;
  wire sign = sum == 0 ? a[7] && b[7] : left > right ? a[7] : b[7];
  always @*
    if (is_nan(a) || is_nan(b) || (is_inf(a) && is_inf(b) && a[7] != b[7])) y = 8'h7c;
    else if (is_inf(a)) y = a;
    else if (is_inf(b)) y = b;
    else y = pack(sign, sum, 0);
"""
MUL = """
  wire sign = a[7] ^ b[7];
  always @*
    if (is_nan(a) || is_nan(b) || (is_inf(a) && zero_b) || (zero_a && is_inf(b))) y = 8'h7c;
    else if (is_inf(a) || is_inf(b)) y = {sign, 7'h78};
    else y = pack(sign, size(a) * size(b), 9);
"""
ROOT = """
  // The root is claimed, not computed: what is free is assumed to be it.
  wire [15:0] q;
  wire [31:0] square = {size(a), 13'd0};
  wire [39:0] least = q * q;
  a_root: assume property (least <= square && square < least + 2 * q + 1);
  always @*
    if (is_nan(a) || (a[7] && !zero_a)) y = 8'h7c;
    else if (is_inf(a)) y = a;
    else y = pack(a[7], {q, least != square}, 3);
"""


def equal(operator, name: str, model: str, twins: dict, formats=("kept",)) -> list[Proof]:
    proofs = []
    for subnormals in formats:
        shape = FloatFormat(exponent_bits=4, fraction_bits=3, subnormals=subnormals == "kept")
        latency = operator(format=shape).latency
        text = MODEL
        for old, new in (KEPT if subnormals == "kept" else FLUSHED).items():
            text = text.replace(old, new)
        hold = HOLD.replace("@", " && i_b == b" if "b" in operator.operands else "")
        proofs.append(
            Proof(
                name=f"e4m3-{name}-{subnormals}",
                component=lambda shape=shape: operator(format=shape),
                text=text + hold + model + END.replace("LATENCY", str(latency)),
                twins=twins
                | {
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


PROOFS = [
    *equal(
        FloatAdd,
        "add",
        ADD,
        {
            "result": twin(
                "hw/float/add.py",
                'aligned = register(m, (extended >> distance) | lost, "aligned", cycles)',
                'aligned = register(m, extended >> distance, "aligned", cycles)',
            )
        },
    ),
    *equal(
        FloatMul,
        "mul",
        MUL,
        {
            "result": twin(
                "hw/float/mul.py",
                "word = cat(shifted[:low_bits].any() | lost, shifted[low_bits:])",
                "word = cat(shifted[:low_bits].any(), shifted[low_bits:])",
            )
        },
    ),
    *equal(
        FloatSqrt,
        "sqrt",
        ROOT,
        {"result": twin("hw/float/sqrt.py", "sign=a.sign & a.zero,", "sign=C(0, 1),")},
        formats=("kept",),
    ),
]
