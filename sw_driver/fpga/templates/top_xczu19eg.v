// @@name on the XCZU19EG with DDR4 on its memory port. Two parts are not here; add them with Vivado:
//
// @@{name}_ddr4_0: the IP "DDR4 SDRAM (MIG)" with an AXI4 interface: data width 512, address width
//   @@address_bits, ID width 1, for a DIMM or components of 64 bits in all. Its user clock, a quarter of
//   the memory's, is the clock of everything here: @@mhz MHz.
// @@{name}_host_wrapper: a block design with the processing system and a SmartConnect. Its master port
//   M_AXI is external: @@host_bus, @@host_bits bits of data, @@host_address_bits of address, on this clock.
//
// boards/@@{name}_xczu19eg_black_boxes.v has their ports for other tools.
module @@{name}_top_xczu19eg (
    input  wire        c0_sys_clk_p,
    input  wire        c0_sys_clk_n,
    input  wire        sys_rst,
    output wire        c0_ddr4_act_n,
    output wire [16:0] c0_ddr4_adr,
    output wire [1:0]  c0_ddr4_ba,
    output wire [1:0]  c0_ddr4_bg,
    output wire        c0_ddr4_cke,
    output wire        c0_ddr4_odt,
    output wire        c0_ddr4_cs_n,
    output wire        c0_ddr4_ck_t,
    output wire        c0_ddr4_ck_c,
    output wire        c0_ddr4_reset_n,
    inout  wire [7:0]  c0_ddr4_dm_dbi_n,
    inout  wire [63:0] c0_ddr4_dq,
    inout  wire [7:0]  c0_ddr4_dqs_t,
    inout  wire [7:0]  c0_ddr4_dqs_c
);
  wire clk, ui_rst, calibrated;
  // Everything waits for the calibration of the memory.
  reg rst = 1;
  reg aresetn = 0;
  always @(posedge clk) begin
    rst <= ui_rst || !calibrated;
    aresetn <= !ui_rst;
  end

@@wires

  @@{name}_host_wrapper host (
    .aclk(clk),
    .aresetn(!rst),
@@host_connections
  );

  @@name dut (
@@connections
  );

  @@{name}_ddr4_0 memory (
    .sys_rst(sys_rst),
    .c0_sys_clk_p(c0_sys_clk_p),
    .c0_sys_clk_n(c0_sys_clk_n),
    .c0_ddr4_act_n(c0_ddr4_act_n),
    .c0_ddr4_adr(c0_ddr4_adr),
    .c0_ddr4_ba(c0_ddr4_ba),
    .c0_ddr4_bg(c0_ddr4_bg),
    .c0_ddr4_cke(c0_ddr4_cke),
    .c0_ddr4_odt(c0_ddr4_odt),
    .c0_ddr4_cs_n(c0_ddr4_cs_n),
    .c0_ddr4_ck_t(c0_ddr4_ck_t),
    .c0_ddr4_ck_c(c0_ddr4_ck_c),
    .c0_ddr4_reset_n(c0_ddr4_reset_n),
    .c0_ddr4_dm_dbi_n(c0_ddr4_dm_dbi_n),
    .c0_ddr4_dq(c0_ddr4_dq),
    .c0_ddr4_dqs_t(c0_ddr4_dqs_t),
    .c0_ddr4_dqs_c(c0_ddr4_dqs_c),
    .c0_init_calib_complete(calibrated),
    .c0_ddr4_ui_clk(clk),
    .c0_ddr4_ui_clk_sync_rst(ui_rst),
    .c0_ddr4_aresetn(aresetn),
@@memory_ties
@@memory_connections
  );
endmodule
