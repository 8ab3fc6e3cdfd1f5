// Simulation only: plays a file of operands through a pipeline and records what comes out.
//
// Operands are read from NAME.vectors (32-bit words, most significant byte first, the words of a
// set in the order from the most significant end of i_data), results written to NAME.results
// (32-bit words of the host's byte order, from the least significant end of o_data). Making clock
// and stimulus here spares the simulator a call into Python every cycle.
module player #(
    parameter NAME = "player",
    parameter INPUT_BITS = 64,
    parameter OUTPUT_BITS = 32,
    parameter LATENCY = 1
) (
    input start,
    input [8:0] density,         // of 256 cycles, how many carry operands
    output reg done,
    output reg [31:0] misplaced, // cycles in which o_valid is not i_valid of LATENCY cycles ago
    output reg clk,
    output reg rst,
    output reg i_valid,
    output reg [INPUT_BITS-1:0] i_data,
    input o_valid,
    input [OUTPUT_BITS-1:0] o_data
);
    integer vectors;
    integer results;
    integer count;
    integer drain;
    reg [INPUT_BITS-1:0] word;
    reg [LATENCY-1:0] expected;
    reg [31:0] random;
    reg playing;
    reg drained;

    initial begin
        done = 0;
        clk = 0;
        random = 32'h2545f491;
        i_valid = 0;
        i_data = 0;
        expected = 0;
        forever begin
            rst = 1;
            playing = 0;
            drained = 0;
            drain = 0;
            wait (start);
            misplaced = 0;
            vectors = $fopen({NAME, ".vectors"}, "rb");
            results = $fopen({NAME, ".results"}, "wb");
            repeat (8) #5 clk = ~clk;
            rst = 0;
            playing = 1;
            while (!drained) #5 clk = ~clk;
            #5 clk = 0;
            $fclose(vectors);
            $fclose(results);
            done = 1;
            wait (!start);
            done = 0;
        end
    end

    always @(posedge clk) if (!rst) begin
        random <= {random[30:0], random[31] ^ random[21] ^ random[1] ^ random[0]};
        i_valid <= 0;
        i_data <= {INPUT_BITS{1'b1}};
        if (playing && {1'b0, random[7:0] ^ random[19:12]} < density) begin
            count = $fread(word, vectors);
            if (count == 0) begin
                playing = 0;
            end else begin
                i_valid <= 1;
                i_data <= word;
            end
        end

        expected <= (expected << 1) | {{(LATENCY - 1){1'b0}}, i_valid};
        if (o_valid !== expected[LATENCY-1]) misplaced <= misplaced + 1;
        if (o_valid) $fwrite(results, "%u", o_data);

        if (!playing) drain = drain + 1;
        if (drain > 2 * LATENCY + 8) drained <= 1;
    end
endmodule
