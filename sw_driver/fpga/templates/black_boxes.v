// Ports of the parts that Vivado adds to boards/@@{name}_top_xczu19eg.v, for tools without them.
(* black_box *)
module @@{name}_host_wrapper (
    input wire aclk,
    input wire aresetn,
@@host_ports
);
endmodule

(* black_box *)
module @@{name}_ddr4_0 (
    input  wire        sys_rst,
    input  wire        c0_sys_clk_p,
    input  wire        c0_sys_clk_n,
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
    inout  wire [7:0]  c0_ddr4_dqs_c,
    output wire        c0_init_calib_complete,
    output wire        c0_ddr4_ui_clk,
    output wire        c0_ddr4_ui_clk_sync_rst,
    input  wire        c0_ddr4_aresetn,
@@memory_ports
);
endmodule
