// AXI manager with the traffic of an optimizer step, for measuring throughput: in each round one
// block of four tensors is read, then the block of the round before is written back to three.
//
// Reads run ahead by up to two rounds, as a double-buffered kernel lets them; a block is written
// when its last read has arrived. A line is written with a hash of its address, so that a read
// must give either that or, before the first write, zero.
module stream_player #(
    parameter integer ADDR_WIDTH = 34,
    parameter integer ID_WIDTH = 4,
    parameter integer BLOCK_BURSTS = 4
) (
    input  wire                  clk,
    input  wire                  rst,
    input  wire                  start,
    input  wire [15:0]           rounds,
    input  wire [ADDR_WIDTH-1:0] base_0,
    input  wire [ADDR_WIDTH-1:0] base_1,
    input  wire [ADDR_WIDTH-1:0] base_2,
    input  wire [ADDR_WIDTH-1:0] base_3,
    output reg                   done,
    output reg  [47:0]           cycles,
    output reg  [31:0]           mismatches,
    output wire [ID_WIDTH-1:0]   m_axi_awid,
    output wire [ADDR_WIDTH-1:0] m_axi_awaddr,
    output wire [7:0]            m_axi_awlen,
    output wire [2:0]            m_axi_awsize,
    output wire [1:0]            m_axi_awburst,
    output wire                  m_axi_awvalid,
    input  wire                  m_axi_awready,
    output wire [511:0]          m_axi_wdata,
    output wire [63:0]           m_axi_wstrb,
    output wire                  m_axi_wlast,
    output wire                  m_axi_wvalid,
    input  wire                  m_axi_wready,
    input  wire [ID_WIDTH-1:0]   m_axi_bid,
    input  wire [1:0]            m_axi_bresp,
    input  wire                  m_axi_bvalid,
    output wire                  m_axi_bready,
    output wire [ID_WIDTH-1:0]   m_axi_arid,
    output wire [ADDR_WIDTH-1:0] m_axi_araddr,
    output wire [7:0]            m_axi_arlen,
    output wire [2:0]            m_axi_arsize,
    output wire [1:0]            m_axi_arburst,
    output wire                  m_axi_arvalid,
    input  wire                  m_axi_arready,
    input  wire [ID_WIDTH-1:0]   m_axi_rid,
    input  wire [511:0]          m_axi_rdata,
    input  wire [1:0]            m_axi_rresp,
    input  wire                  m_axi_rlast,
    input  wire                  m_axi_rvalid,
    output wire                  m_axi_rready
);
    localparam integer BURST_BYTES = 4096;
    localparam integer LAST = 63;

    function [ADDR_WIDTH-1:0] address(input [15:0] at_round, input [1:0] tensor,
                                      input [7:0] burst, input [5:0] beat);
        reg [ADDR_WIDTH-1:0] base;
        begin
            case (tensor)
                2'd0: base = base_0;
                2'd1: base = base_1;
                2'd2: base = base_2;
                default: base = base_3;
            endcase
            address = base + (at_round * BLOCK_BURSTS + burst) * BURST_BYTES + beat * 64;
        end
    endfunction

    function [31:0] hash(input [ADDR_WIDTH-1:0] at);
        hash = (at >> 6) * 32'h9e3779b1 + 32'h1234567;
    endfunction

    reg running;
    reg [15:0] ar_round, r_round, aw_round, w_round, b_round;
    reg [1:0] ar_tensor, r_tensor, aw_tensor, w_tensor, b_tensor;
    reg [7:0] ar_burst, r_burst, aw_burst, w_burst, b_burst;
    reg [5:0] r_beat, w_beat;
    // Bursts whose address was given and whose data were not.
    reg [15:0] w_pending;

    assign m_axi_arid = ar_tensor;
    assign m_axi_araddr = address(ar_round, ar_tensor, ar_burst, 0);
    assign m_axi_arlen = LAST;
    assign m_axi_arsize = 6;
    assign m_axi_arburst = 1;
    assign m_axi_arvalid = running && ar_round < rounds && ar_round < b_round + 3;
    assign m_axi_rready = 1;
    assign m_axi_awid = aw_tensor;
    assign m_axi_awaddr = address(aw_round, aw_tensor, aw_burst, 0);
    assign m_axi_awlen = LAST;
    assign m_axi_awsize = 6;
    assign m_axi_awburst = 1;
    assign m_axi_awvalid = running && aw_round < r_round;
    assign m_axi_wdata = {16{hash(address(w_round, w_tensor, w_burst, w_beat))}};
    assign m_axi_wstrb = {64{1'b1}};
    assign m_axi_wlast = w_beat == LAST;
    assign m_axi_wvalid = w_pending != 0;
    assign m_axi_bready = 1;

    wire ar = m_axi_arvalid && m_axi_arready;
    wire r_end = m_axi_rvalid && m_axi_rlast;
    wire aw = m_axi_awvalid && m_axi_awready;
    wire w = m_axi_wvalid && m_axi_wready;
    wire [31:0] expected = hash(address(r_round, r_tensor, r_burst, r_beat));

    always @(posedge clk) begin
        if (rst) begin
            running <= 0;
            done <= 0;
            cycles <= 0;
            mismatches <= 0;
        end else if (!running) begin
            if (start) begin
                running <= 1;
                done <= 0;
                cycles <= 0;
                {ar_round, r_round, aw_round, w_round, b_round} <= 0;
                {ar_tensor, r_tensor, aw_tensor, w_tensor, b_tensor} <= 0;
                {ar_burst, r_burst, aw_burst, w_burst, b_burst} <= 0;
                r_beat <= 0;
                w_beat <= 0;
                w_pending <= 0;
            end
        end else begin
            cycles <= cycles + 1;
            if (ar) begin
                ar_burst <= ar_burst == BLOCK_BURSTS - 1 ? 0 : ar_burst + 1;
                if (ar_burst == BLOCK_BURSTS - 1) begin
                    ar_tensor <= ar_tensor + 1;
                    if (ar_tensor == 3) ar_round <= ar_round + 1;
                end
            end
            if (m_axi_rvalid) begin
                r_beat <= r_beat + 1;
                if (m_axi_rresp != 0 || m_axi_rid[1:0] != r_tensor || m_axi_rlast != (r_beat == LAST)
                        || (m_axi_rdata != 0 && m_axi_rdata != {16{expected}}))
                    mismatches <= mismatches + 1;
                if (r_end) begin
                    r_burst <= r_burst == BLOCK_BURSTS - 1 ? 0 : r_burst + 1;
                    if (r_burst == BLOCK_BURSTS - 1) begin
                        r_tensor <= r_tensor + 1;
                        if (r_tensor == 3) r_round <= r_round + 1;
                    end
                end
            end
            if (aw) begin
                aw_burst <= aw_burst == BLOCK_BURSTS - 1 ? 0 : aw_burst + 1;
                if (aw_burst == BLOCK_BURSTS - 1) begin
                    aw_tensor <= aw_tensor == 2 ? 0 : aw_tensor + 1;
                    if (aw_tensor == 2) aw_round <= aw_round + 1;
                end
            end
            w_pending <= w_pending + aw - (w && m_axi_wlast);
            if (w) begin
                w_beat <= w_beat + 1;
                if (m_axi_wlast) begin
                    w_burst <= w_burst == BLOCK_BURSTS - 1 ? 0 : w_burst + 1;
                    if (w_burst == BLOCK_BURSTS - 1) begin
                        w_tensor <= w_tensor == 2 ? 0 : w_tensor + 1;
                        if (w_tensor == 2) w_round <= w_round + 1;
                    end
                end
            end
            if (m_axi_bvalid) begin
                if (m_axi_bresp != 0 || m_axi_bid[1:0] != b_tensor) mismatches <= mismatches + 1;
                b_burst <= b_burst == BLOCK_BURSTS - 1 ? 0 : b_burst + 1;
                if (b_burst == BLOCK_BURSTS - 1) begin
                    b_tensor <= b_tensor == 2 ? 0 : b_tensor + 1;
                    if (b_tensor == 2) begin
                        b_round <= b_round + 1;
                        if (b_round == rounds - 1) begin
                            running <= 0;
                            done <= 1;
                        end
                    end
                end
            end
        end
    end
endmodule
