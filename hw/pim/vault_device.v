// The DRAM of one vault, for simulation only: stores the bytes and refuses every command that
// breaks a timing rule, to the clock of the data TSVs (tCK).
//
// clk is the fabric clock, four tCK long. Slot i of the fabric cycle c, counted from the end of
// reset, is tCK 4*c + i. Nothing is evaluated in a cycle without a command, data or refresh limit.
//
// Storage is in device order: mem[{layer, bank, row, column}]. A write in slot s takes its data
// floor((s + CWL) / 4) cycles later, a read gives its data ceil((s + CL + 4) / 4) cycles later;
// outside of those cycles read_data shows a pattern that nothing should use. RDA and WRA precharge
// their bank as soon as tRAS, tRTP and tWR allow. Reset closes all banks and restarts time; it
// leaves the storage alone.
/* verilator lint_off BLKSEQ */
/* verilator lint_off WIDTHEXPAND */
/* verilator lint_off WIDTHTRUNC */
module vault_device #(
    parameter integer LAYER_BITS = 3,
    parameter integer BANK_BITS = 1,
    parameter integer ROW_BITS = 3,
    parameter integer COLUMN_BITS = 3,
    parameter integer ADDRESS_BITS = 3,
    parameter integer CL = 17,
    parameter integer CWL = 13,
    parameter integer T_RCD = 17,
    parameter integer T_RP = 17,
    parameter integer T_RAS = 34,
    parameter integer T_RC = 51,
    parameter integer T_CCD_S = 4,
    parameter integer T_CCD_L = 6,
    parameter integer T_RRD_S = 7,
    parameter integer T_RRD_L = 8,
    parameter integer T_FAW = 17,
    parameter integer T_WR = 19,
    parameter integer T_WTR_S = 3,
    parameter integer T_WTR_L = 9,
    parameter integer T_RTP = 9,
    parameter integer T_RFC = 200,
    parameter integer T_REFI = 9750
) (
    input  wire                    clk,
    input  wire                    rst,
    input  wire [2:0]              command_p0,
    input  wire [LAYER_BITS-1:0]   layer_p0,
    input  wire [BANK_BITS-1:0]    bank_p0,
    input  wire [ADDRESS_BITS-1:0] address_p0,
    input  wire [2:0]              command_p1,
    input  wire [LAYER_BITS-1:0]   layer_p1,
    input  wire [BANK_BITS-1:0]    bank_p1,
    input  wire [ADDRESS_BITS-1:0] address_p1,
    input  wire [2:0]              command_p2,
    input  wire [LAYER_BITS-1:0]   layer_p2,
    input  wire [BANK_BITS-1:0]    bank_p2,
    input  wire [ADDRESS_BITS-1:0] address_p2,
    input  wire [2:0]              command_p3,
    input  wire [LAYER_BITS-1:0]   layer_p3,
    input  wire [BANK_BITS-1:0]    bank_p3,
    input  wire [ADDRESS_BITS-1:0] address_p3,
    input  wire [255:0]            write_data,
    input  wire [31:0]             write_mask,
    output reg  [255:0]            read_data,
    output reg                     violation,
    output reg  [7:0]              violation_code,
    output reg  [47:0]             violation_tck
);
    localparam integer LAYERS = 1 << LAYER_BITS;
    localparam integer BANKS = 1 << (LAYER_BITS + BANK_BITS);
    localparam integer INDEX_BITS = LAYER_BITS + BANK_BITS + ROW_BITS + COLUMN_BITS;
    localparam integer BEATS = 1 << INDEX_BITS;
    localparam integer BURST = 4;
    localparam integer READ_TO_WRITE = CL + BURST + 2 - CWL;
    // Data cycles that can be announced ahead.
    localparam integer RING_BITS = 6;
    localparam integer RING = 1 << RING_BITS;
    localparam [31:0] POISON = 32'hdead_da7a;
    localparam signed [63:0] NEVER = -64'sd1000000;

    localparam [2:0] NOP = 0, ACT = 1, RD = 2, RDA = 3, WR = 4, WRA = 5, REF = 6;

    reg [255:0] mem [0:BEATS-1] /*verilator public_flat_rw*/;

    reg [61:0] cycle;
    reg [BANKS-1:0] open;
    reg [ROW_BITS-1:0] open_row [0:BANKS-1];
    reg signed [63:0] bank_act [0:BANKS-1];
    // The last columns of the bank since its last activate.
    reg signed [63:0] bank_rd [0:BANKS-1];
    reg signed [63:0] bank_wr [0:BANKS-1];
    reg signed [63:0] layer_act [0:LAYERS-1];
    reg signed [63:0] layer_rd [0:LAYERS-1];
    reg signed [63:0] layer_wr [0:LAYERS-1];
    reg signed [63:0] last_act, last_rd, last_wr, last_ref, bus_end;
    // The last four activates, oldest at the pointer.
    reg signed [63:0] recent_act [0:3];
    reg [1:0] recent_act_at;
    // The first clock at which a refresh is overdue.
    reg signed [63:0] overdue;

    reg [RING-1:0] read_due;
    reg [RING-1:0] write_due;
    reg [INDEX_BITS-1:0] read_index [0:RING-1];
    reg [INDEX_BITS-1:0] write_index [0:RING-1];
    reg poisoned;

    reg bad;
    reg [7:0] bad_code;
    reg signed [63:0] bad_tck;

    wire [4*3-1:0] commands = {command_p3, command_p2, command_p1, command_p0};
    wire [4*LAYER_BITS-1:0] layers = {layer_p3, layer_p2, layer_p1, layer_p0};
    wire [4*BANK_BITS-1:0] banks = {bank_p3, bank_p2, bank_p1, bank_p0};
    wire [4*ADDRESS_BITS-1:0] addresses = {address_p3, address_p2, address_p1, address_p0};
    wire [RING_BITS-1:0] now = cycle[RING_BITS-1:0];

    task violate(input [7:0] code, input [16*8-1:0] rule, input signed [63:0] tck,
                 input [2:0] command, input integer bank_index, input integer address);
        if (!bad) begin
            bad = 1'b1;
            bad_code = code;
            bad_tck = tck;
            $display(
                "vault_device: tCK %0d: command %0d layer %0d bank %0d address %0d breaks %0s",
                tck, command, bank_index >> BANK_BITS, bank_index & ((1 << BANK_BITS) - 1),
                address, rule);
        end
    endtask

    // Whether the closed bank b has been precharged for tRP.
    task check_precharged(input integer b, input signed [63:0] t, input [2:0] command,
                          input integer address);
        begin
            if (t - bank_act[b] < T_RAS + T_RP)
                violate(8'd4, "tRAS + tRP", t, command, b, address);
            if (t - bank_rd[b] < T_RTP + T_RP)
                violate(8'd5, "tRTP + tRP", t, command, b, address);
            if (t - bank_wr[b] < CWL + BURST + T_WR + T_RP)
                violate(8'd6, "tWR + tRP", t, command, b, address);
        end
    endtask

    task step(input [2:0] command, input [LAYER_BITS-1:0] layer, input [BANK_BITS-1:0] bank,
              input [ADDRESS_BITS-1:0] address, input signed [63:0] t);
        integer b;
        integer i;
        reg [RING_BITS-1:0] at;
        reg signed [63:0] due;
        begin
            b = {layer, bank};
            // A refresh at the very last clock still counts.
            if (t >= overdue) begin
                violate(8'd17, "tREFI", t, NOP, 0, 0);
                overdue = t + T_REFI;
            end
            if (command != NOP && t - last_ref < T_RFC)
                violate(8'd15, "tRFC", t, command, b, address);
            case (command)
                NOP: ;
                ACT: begin
                    if (open[b]) violate(8'd1, "ACT on open bank", t, command, b, address);
                    if (address >> ROW_BITS != 0)
                        violate(8'd21, "row range", t, command, b, address);
                    check_precharged(b, t, command, address);
                    if (t - bank_act[b] < T_RC) violate(8'd7, "tRC", t, command, b, address);
                    if (t - last_act < T_RRD_S) violate(8'd9, "tRRD_S", t, command, b, address);
                    if (t - layer_act[layer] < T_RRD_L)
                        violate(8'd10, "tRRD_L", t, command, b, address);
                    if (t - recent_act[recent_act_at] < T_FAW)
                        violate(8'd11, "tFAW", t, command, b, address);
                    open[b] = 1'b1;
                    open_row[b] = address[ROW_BITS-1:0];
                    bank_act[b] = t;
                    layer_act[layer] = t;
                    last_act = t;
                    recent_act[recent_act_at] = t;
                    recent_act_at = recent_act_at + 2'd1;
                    bank_rd[b] = NEVER;
                    bank_wr[b] = NEVER;
                end
                RD, RDA: begin
                    if (!open[b]) violate(8'd2, "RD on closed bank", t, command, b, address);
                    if (address >> COLUMN_BITS != 0)
                        violate(8'd22, "column range", t, command, b, address);
                    if (t - bank_act[b] < T_RCD) violate(8'd8, "tRCD", t, command, b, address);
                    if (t - last_rd < T_CCD_S) violate(8'd18, "tCCD_S", t, command, b, address);
                    if (t - layer_rd[layer] < T_CCD_L)
                        violate(8'd19, "tCCD_L", t, command, b, address);
                    if (t - last_wr < CWL + BURST + T_WTR_S)
                        violate(8'd12, "tWTR_S", t, command, b, address);
                    if (t - layer_wr[layer] < CWL + BURST + T_WTR_L)
                        violate(8'd13, "tWTR_L", t, command, b, address);
                    if (t + CL < bus_end)
                        violate(8'd23, "data bus overlap", t, command, b, address);
                    bus_end = t + CL + BURST;
                    bank_rd[b] = t;
                    layer_rd[layer] = t;
                    last_rd = t;
                    if (command == RDA) open[b] = 1'b0;
                    // Sampled at the edge that ends the cycle before the data is shown.
                    due = ((t + CL + BURST + 3) >>> 2) - 1;
                    at = due[RING_BITS-1:0];
                    read_due[at] = 1'b1;
                    read_index[at] = {layer, bank, open_row[b], address[COLUMN_BITS-1:0]};
                end
                WR, WRA: begin
                    if (!open[b]) violate(8'd3, "WR on closed bank", t, command, b, address);
                    if (address >> COLUMN_BITS != 0)
                        violate(8'd22, "column range", t, command, b, address);
                    if (t - bank_act[b] < T_RCD) violate(8'd8, "tRCD", t, command, b, address);
                    if (t - last_wr < T_CCD_S) violate(8'd18, "tCCD_S", t, command, b, address);
                    if (t - layer_wr[layer] < T_CCD_L)
                        violate(8'd19, "tCCD_L", t, command, b, address);
                    if (t - last_rd < READ_TO_WRITE)
                        violate(8'd20, "read to write", t, command, b, address);
                    if (t + CWL < bus_end)
                        violate(8'd23, "data bus overlap", t, command, b, address);
                    bus_end = t + CWL + BURST;
                    bank_wr[b] = t;
                    layer_wr[layer] = t;
                    last_wr = t;
                    if (command == WRA) open[b] = 1'b0;
                    due = (t + CWL) >>> 2;
                    at = due[RING_BITS-1:0];
                    write_due[at] = 1'b1;
                    write_index[at] = {layer, bank, open_row[b], address[COLUMN_BITS-1:0]};
                end
                REF: begin
                    if (open != 0) violate(8'd16, "REF with open bank", t, command, b, address);
                    /* verilator unroll_disable */
                    for (i = 0; i < BANKS; i = i + 1) check_precharged(i, t, command, address);
                    last_ref = t;
                    overdue = t + T_REFI + 1;
                end
                default: violate(8'd25, "command encoding", t, command, b, address);
            endcase
        end
    endtask

    integer i;
    integer slot;

    task restart;
        begin
            cycle = 0;
            open = 0;
            /* verilator unroll_disable */
            for (i = 0; i < BANKS; i = i + 1) begin
                bank_act[i] = NEVER;
                bank_rd[i] = NEVER;
                bank_wr[i] = NEVER;
            end
            /* verilator unroll_disable */
            for (i = 0; i < LAYERS; i = i + 1) begin
                layer_act[i] = NEVER;
                layer_rd[i] = NEVER;
                layer_wr[i] = NEVER;
            end
            /* verilator unroll_disable */
            for (i = 0; i < 4; i = i + 1) recent_act[i] = NEVER;
            last_act = NEVER;
            last_rd = NEVER;
            last_wr = NEVER;
            last_ref = NEVER;
            bus_end = NEVER;
            recent_act_at = 0;
            overdue = T_REFI + 1;
            read_due = 0;
            write_due = 0;
            bad = 1'b0;
            bad_code = 0;
            bad_tck = 0;
        end
    endtask

    initial begin
        restart;
        poisoned = 1'b0;
        violation = 1'b0;
        violation_code = 0;
        violation_tck = 0;
        /* verilator unroll_disable */
        for (i = 0; i < BEATS; i = i + 1) mem[i] = 256'd0;
    end

    always @(posedge clk) begin
        if (rst) restart;
        else begin
            if (commands != 0 || overdue[63:2] == cycle) begin
                // A loop, so that the simulator has to compile the rules once only.
                /* verilator unroll_disable */
                for (slot = 0; slot < 4; slot = slot + 1)
                    if (commands[3*slot +: 3] != NOP || overdue == {cycle, slot[1:0]})
                        step(commands[3*slot +: 3],
                             layers[LAYER_BITS*slot +: LAYER_BITS],
                             banks[BANK_BITS*slot +: BANK_BITS],
                             addresses[ADDRESS_BITS*slot +: ADDRESS_BITS],
                             {cycle, slot[1:0]});
            end
            // The read goes first: what is sampled at the same edge was written later.
            if (read_due[now]) begin
                read_due[now] = 1'b0;
                read_data <= mem[read_index[now]];
                poisoned <= 1'b0;
            end else if (!poisoned) begin
                read_data <= {8{POISON}};
                poisoned <= 1'b1;
            end
            if (write_due[now]) begin
                write_due[now] = 1'b0;
                if (write_mask == 0) mem[write_index[now]] <= write_data;
                else begin
                    /* verilator unroll_disable */
                    for (i = 0; i < 32; i = i + 1)
                        if (!write_mask[i])
                            mem[write_index[now]][8*i +: 8] <= write_data[8*i +: 8];
                end
            end
            cycle = cycle + 1;
        end
        violation <= bad;
        violation_code <= bad_code;
        violation_tck <= bad_tck[47:0];
    end
endmodule
