// Self test of @@name, for simulation and for an FPGA. It has a memory on the AXI4 port, and plays a
// script of register accesses. At the end it compares the memory with the expected contents from a
// model that shares nothing with the design.
module @@{name}_selftest (
    input  wire clk,
    input  wire rst,
    output reg  done,
    output wire pass
);
  localparam LINES = @@lines;  // of 64 bytes; a power of two
  localparam LINE_BITS = @@line_bits;
  localparam STEPS = @@steps;
  localparam STEP_BITS = @@step_bits;
  localparam ADDRESS_BITS = @@address_bits;

  // A step of the script: its kind, the register's address, 64 bits of data.
  localparam [7:0] WRITE = 0, READ = 1, WAIT = 2;
  reg [87:0] script [0:STEPS-1];
  // The memory's contents before the runs, followed by the expected contents after them.
  reg [511:0] image [0:2*LINES-1];
  reg [511:0] memory [0:LINES-1];
  initial begin
    $readmemh("@@{name}_script.hex", script);
    $readmemh("@@{name}_image.hex", image);
  end

  reg [15:0] random;
  always @(posedge clk)
    if (rst) random <= 16'h1;
    else random <= {random[14:0], random[15] ^ random[13] ^ random[12] ^ random[10]};

  // Phases: fill the memory, play the script, compare the memory.
  localparam [1:0] FILL = 0, PLAY = 1, COMPARE = 2, END = 3;
  reg [1:0] phase;
  reg [LINE_BITS+1:0] count;
  reg [511:0] line_of_image;
  always @(posedge clk) line_of_image <= image[{phase == COMPARE, count[LINE_BITS-1:0]}];

  // AXI4, the kernel's side: one burst of each kind at a time, with idle cycles in between.
  wire m_axi_awid, m_axi_arid;
  wire [ADDRESS_BITS-1:0] m_axi_awaddr, m_axi_araddr;
  wire [7:0] m_axi_awlen, m_axi_arlen;
  wire [2:0] m_axi_awsize, m_axi_arsize;
  wire [1:0] m_axi_awburst, m_axi_arburst;
  wire m_axi_awvalid, m_axi_wvalid, m_axi_wlast, m_axi_bready, m_axi_arvalid, m_axi_rready;
  wire [511:0] m_axi_wdata;
  wire [63:0] m_axi_wstrb;
  reg m_axi_bid, m_axi_rid, m_axi_bvalid, m_axi_rvalid;
  reg [511:0] m_axi_rdata;

  reg writing;
  reg [LINE_BITS-1:0] write_line;
  reg [7:0] write_left;
  wire m_axi_awready = phase == PLAY && !writing && !m_axi_bvalid && random[0];
  wire m_axi_wready = writing && random[3:2] != 0;
  wire aw = m_axi_awvalid && m_axi_awready;
  wire w = m_axi_wvalid && m_axi_wready;
  wire strange_aw = m_axi_awaddr >> LINE_BITS + 6 != 0 || m_axi_awaddr[5:0] != 0
      || m_axi_awsize != 6 || m_axi_awburst != 1;
  always @(posedge clk)
    if (rst) begin
      writing <= 0;
      m_axi_bvalid <= 0;
    end else begin
      if (aw) begin
        writing <= 1;
        write_line <= m_axi_awaddr[LINE_BITS+5:6];
        write_left <= m_axi_awlen;
        m_axi_bid <= m_axi_awid;
      end
      if (w) begin
        write_line <= write_line + 1'b1;
        write_left <= write_left - 1'b1;
        if (m_axi_wlast) begin
          writing <= 0;
          m_axi_bvalid <= 1;
        end
      end
      if (m_axi_bvalid && m_axi_bready) m_axi_bvalid <= 0;
    end

  wire filling = phase == FILL && count != 0;
  wire [LINE_BITS-1:0] store_line = filling ? count[LINE_BITS-1:0] - 1'b1 : write_line;
  wire [511:0] store_data = filling ? line_of_image : m_axi_wdata;
  wire [63:0] store = filling ? {64{1'b1}} : w ? m_axi_wstrb : 64'b0;
  integer i;
  always @(posedge clk)
    for (i = 0; i < 64; i = i + 1) if (store[i]) memory[store_line][8*i+:8] <= store_data[8*i+:8];

  reg reading, fetched;
  reg [LINE_BITS-1:0] read_line;
  reg [7:0] read_left;
  wire m_axi_arready = phase == PLAY && !reading && random[1];
  wire m_axi_rlast = read_left == 0;
  wire ar = m_axi_arvalid && m_axi_arready;
  wire r = m_axi_rvalid && m_axi_rready;
  wire strange_ar = m_axi_araddr >> LINE_BITS + 6 != 0 || m_axi_araddr[5:0] != 0
      || m_axi_arsize != 6 || m_axi_arburst != 1;
  wire [LINE_BITS-1:0] fetch_line = phase == COMPARE ? count[LINE_BITS-1:0] : read_line;
  always @(posedge clk) if (phase == COMPARE || !fetched) m_axi_rdata <= memory[fetch_line];
  always @(posedge clk)
    if (rst) begin
      reading <= 0;
      fetched <= 0;
      m_axi_rvalid <= 0;
    end else begin
      if (ar) begin
        reading <= 1;
        read_line <= m_axi_araddr[LINE_BITS+5:6];
        read_left <= m_axi_arlen;
        m_axi_rid <= m_axi_arid;
      end
      fetched <= reading && !r;
      m_axi_rvalid <= reading && !r && (m_axi_rvalid || fetched && random[5:4] != 0);
      if (r) begin
        read_line <= read_line + 1'b1;
        read_left <= read_left - 1'b1;
        if (m_axi_rlast) reading <= 0;
      end
    end

  // AXI4-Lite: one step of the script at a time.
  reg [STEP_BITS-1:0] step;
  reg [87:0] order;
  always @(posedge clk) order <= script[step];
  wire [7:0] kind = order[87:80];
  wire [@@{register_bits}-1:0] s_axi_awaddr = order[@@{register_bits}+63:64];
  wire [@@{register_bits}-1:0] s_axi_araddr = order[@@{register_bits}+63:64];
  wire [63:0] s_axi_wdata = order[63:0];
  wire [7:0] s_axi_wstrb = 8'hff;
  wire [2:0] s_axi_awprot = 0;
  wire [2:0] s_axi_arprot = 0;
  reg s_axi_awvalid, s_axi_wvalid, s_axi_arvalid;
  wire s_axi_awready, s_axi_wready, s_axi_arready, s_axi_bvalid, s_axi_rvalid;
  wire s_axi_bready = 1;
  wire s_axi_rready = 1;
  wire [1:0] s_axi_bresp, s_axi_rresp;
  wire [63:0] s_axi_rdata;

  localparam [1:0] FETCH = 0, ISSUE = 1, ANSWER = 2;
  reg [1:0] state;
  reg [23:0] waited;
  wire [63:0] expected = order[63:0];
  wire answered = s_axi_bvalid || s_axi_rvalid;
  wire again = kind == WAIT && s_axi_rdata[0];  // busy
  wire wrong = s_axi_bvalid ? s_axi_bresp != 0
      : s_axi_rresp != 0 || !again && s_axi_rdata != expected;

  reg failed;
  assign pass = done && !failed;
  always @(posedge clk)
    if (rst) begin
      phase <= FILL;
      count <= 0;
      step <= 0;
      state <= FETCH;
      waited <= 0;
      s_axi_awvalid <= 0;
      s_axi_wvalid <= 0;
      s_axi_arvalid <= 0;
      failed <= 0;
      done <= 0;
    end else begin
      if (aw && strange_aw || ar && strange_ar || w && m_axi_wlast != (write_left == 0)) begin
        failed <= 1;
`ifndef SYNTHESIS
        $display("not as the memory expects it: %s", aw && strange_aw ? "write address"
            : ar && strange_ar ? "read address" : "wlast");
`endif
      end
      case (phase)
        FILL: begin
          count <= count + 1'b1;
          if (count == LINES) begin
            phase <= PLAY;
            count <= 0;
          end
        end
        PLAY: begin
          waited <= waited + 1'b1;
          if (s_axi_awready) s_axi_awvalid <= 0;
          if (s_axi_wready) s_axi_wvalid <= 0;
          if (s_axi_arready) s_axi_arvalid <= 0;
          case (state)
            FETCH: state <= ISSUE;
            ISSUE: begin
              s_axi_awvalid <= kind == WRITE;
              s_axi_wvalid <= kind == WRITE;
              s_axi_arvalid <= kind != WRITE;
              state <= ANSWER;
            end
            default: if (answered) begin
              state <= FETCH;
              if (!again) begin
                waited <= 0;
                step <= step + 1'b1;
                if (step == STEPS - 1) phase <= COMPARE;
              end
              if (wrong) begin
                failed <= 1;
`ifndef SYNTHESIS
                if (s_axi_bvalid) $display("register %h: write refused", s_axi_awaddr);
                else $display("register %h: got %h, expected %h (response %0d)",
                    s_axi_araddr, s_axi_rdata, expected, s_axi_rresp);
`endif
              end
            end
          endcase
          if (&waited) begin
            failed <= 1;
            phase <= END;
`ifndef SYNTHESIS
            $display("step %0d of the script never ended", step);
`endif
          end
        end
        COMPARE: begin
          count <= count + 1'b1;
          if (count == LINES) phase <= END;
          if (count != 0 && m_axi_rdata != line_of_image) begin
            failed <= 1;
`ifndef SYNTHESIS
            $display("memory line %0d: got %h, expected %h", count - 1, m_axi_rdata,
                line_of_image);
`endif
          end
        end
        default: done <= 1;
      endcase
    end

  @@name dut (
@@connections
  );
endmodule
