// A DRAM, for simulation only: stores the bytes and refuses every command that breaks a timing rule
// (named as in JESD79-4), to the DRAM clock (tCK).
//
// clk is the fabric clock, four tCK long. Slot i of the fabric cycle c, counted from the end of
// reset, is tCK 4*c + i; commands, groups, banks and addresses hold all four slots, slot 0 lowest.
// Nothing is evaluated in a cycle without a command, data or refresh limit.
//
// The codes of the commands are parameters. One above 7, which no slot can carry, is of a command
// that the memory does not have. RDA and WRA precharge their bank as soon as tRAS, tRTP and tWR
// allow.
//
// Storage is in device order: mem[{group, bank, row, burst of the row}]. A WR in slot s takes its
// data floor((s + CWL) / 4) cycles later, a RD gives its data ceil((s + CL + 4) / 4) cycles later;
// outside of those cycles read_data shows a pattern that nothing should use. Reset closes all
// banks and restarts time; it leaves the storage alone.
/* verilator lint_off BLKSEQ */
/* verilator lint_off WIDTHEXPAND */
/* verilator lint_off WIDTHTRUNC */
module dram_device #(
    parameter integer GROUP_BITS = 2,
    parameter integer BANK_BITS = 2,
    parameter integer ROW_BITS = 9,
    parameter integer COLUMN_BITS = 10,
    parameter integer BURST_COLUMN_BITS = 3,
    parameter integer ADDRESS_BITS = 10,
    parameter integer DATA_BYTES = 64,
    parameter [3:0] ACT = 1,
    parameter [3:0] PRE = 8,
    parameter [3:0] PREA = 9,
    parameter [3:0] RD = 4,
    parameter [3:0] RDA = 10,
    parameter [3:0] WR = 5,
    parameter [3:0] WRA = 11,
    parameter [3:0] REF = 6,
    parameter integer CL = 11,
    parameter integer CWL = 9,
    parameter integer T_RCD = 11,
    parameter integer T_RP = 11,
    parameter integer T_RAS = 28,
    parameter integer T_RC = 39,
    parameter integer T_CCD_S = 4,
    parameter integer T_CCD_L = 5,
    parameter integer T_RRD_S = 4,
    parameter integer T_RRD_L = 5,
    parameter integer T_FAW = 20,
    parameter integer T_WR = 12,
    parameter integer T_WTR_S = 2,
    parameter integer T_WTR_L = 6,
    parameter integer T_RTP = 6,
    parameter integer T_RFC = 440,
    parameter integer T_REFI = 6240,
    // Refreshes that may be postponed or pulled in; with 0, each is due tREFI after the last one.
    parameter integer MAX_POSTPONED = 8,
    parameter integer CHECK_REFRESH = 1,
    // The names of the violations, 16 characters each, code 0 lowest.
    parameter [26*16*8-1:0] RULES = 0
) (
    input  wire                      clk,
    input  wire                      rst,
    input  wire [4*3-1:0]            commands,
    input  wire [4*GROUP_BITS-1:0]   groups,
    input  wire [4*BANK_BITS-1:0]    banks,
    input  wire [4*ADDRESS_BITS-1:0] addresses,
    input  wire [8*DATA_BYTES-1:0]   write_data,
    input  wire [DATA_BYTES-1:0]     write_mask,
    output reg  [8*DATA_BYTES-1:0]   read_data,
    output reg                       violation,
    output reg  [7:0]                violation_code,
    output reg  [47:0]               violation_tck
);
    localparam integer BANKS = 1 << (GROUP_BITS + BANK_BITS);
    localparam integer GROUPS = 1 << GROUP_BITS;
    localparam integer INDEX_BITS =
        GROUP_BITS + BANK_BITS + ROW_BITS + COLUMN_BITS - BURST_COLUMN_BITS;
    localparam integer BURSTS = 1 << INDEX_BITS;
    localparam integer BURST = 4;
    localparam integer READ_TO_WRITE = CL + BURST + 2 - CWL;
    // Data are announced up to (CL + 6) / 4 cycles ahead.
    localparam integer RING_BITS = $clog2((CL + 6) / 4 + 1);
    localparam integer RING = 1 << RING_BITS;
    localparam [31:0] POISON = 32'hdead_da7a;
    localparam signed [63:0] NEVER = -64'sd1000000;
    localparam [3:0] NOP = 0;

    reg [8*DATA_BYTES-1:0] mem [0:BURSTS-1] /*verilator public_flat_rw*/;

    reg [61:0] cycle;
    reg [BANKS-1:0] open;
    reg [ROW_BITS-1:0] open_row [0:BANKS-1];
    reg signed [63:0] bank_act [0:BANKS-1];
    reg signed [63:0] bank_pre [0:BANKS-1];
    reg signed [63:0] bank_rd [0:BANKS-1];
    reg signed [63:0] bank_wr [0:BANKS-1];
    reg signed [63:0] group_act [0:GROUPS-1];
    reg signed [63:0] group_rd [0:GROUPS-1];
    reg signed [63:0] group_wr [0:GROUPS-1];
    reg signed [63:0] last_act, last_rd, last_wr, last_ref, bus_end;
    // The last four activates and the last sixteen refreshes, oldest at the pointer.
    reg signed [63:0] recent_act [0:3];
    reg [1:0] recent_act_at;
    reg signed [63:0] recent_ref [0:15];
    reg [3:0] recent_ref_at;
    // Refreshes due and not yet given; negative when given in advance.
    integer owed;
    reg signed [63:0] next_due;

    reg [RING-1:0] read_due;
    reg [RING-1:0] write_due;
    reg [INDEX_BITS-1:0] read_index [0:RING-1];
    reg [INDEX_BITS-1:0] write_index [0:RING-1];
    reg poisoned;

    // The first violation; of all rules that a command breaks, the first one counts.
    reg bad;
    reg [7:0] bad_code;
    reg [47:0] bad_tck;

    wire [RING_BITS-1:0] now = cycle[RING_BITS-1:0];

    task violate(input [7:0] code);
        if (bad_code == 0) bad_code = code;
    endtask

    task precharge(input integer b, input signed [63:0] t);
        begin
            if (open[b]) begin
                if (t - bank_act[b] < T_RAS) violate(8'd5);
                if (t - bank_rd[b] < T_RTP) violate(8'd14);
                if (t - bank_wr[b] < CWL + BURST + T_WR) violate(8'd11);
            end
            open[b] = 1'b0;
            bank_pre[b] = t;
        end
    endtask

    task auto_precharge(input integer b);
        begin
            open[b] = 1'b0;
            bank_pre[b] = bank_act[b] + T_RAS;
            if (bank_pre[b] < bank_rd[b] + T_RTP) bank_pre[b] = bank_rd[b] + T_RTP;
            if (bank_pre[b] < bank_wr[b] + CWL + BURST + T_WR)
                bank_pre[b] = bank_wr[b] + CWL + BURST + T_WR;
        end
    endtask

    // What reads and writes have in common.
    task check_column(input integer b, input [ADDRESS_BITS-1:0] address, input signed [63:0] t);
        begin
            if (address >> COLUMN_BITS != 0 || (address & ((1 << BURST_COLUMN_BITS) - 1)) != 0)
                violate(8'd22);
            if (t - bank_act[b] < T_RCD) violate(8'd7);
        end
    endtask

    task step(input [3:0] command, input [GROUP_BITS-1:0] group, input [BANK_BITS-1:0] bank,
              input [ADDRESS_BITS-1:0] address, input signed [63:0] t);
        integer b;
        integer i;
        integer g;
        reg [RING_BITS-1:0] at;
        reg signed [63:0] due;
        begin
            b = {group, bank};
            g = group;
            if (command != NOP && t - last_ref < T_RFC) violate(8'd15);
            case (command)
                NOP: ;
                ACT: begin
                    if (open[b]) violate(8'd1);
                    if (address >> ROW_BITS != 0) violate(8'd21);
                    if (t - bank_pre[b] < T_RP) violate(8'd4);
                    if (t - bank_act[b] < T_RC) violate(8'd6);
                    if (t - last_act < T_RRD_S) violate(8'd8);
                    if (t - group_act[g] < T_RRD_L) violate(8'd9);
                    if (t - recent_act[recent_act_at] < T_FAW) violate(8'd10);
                    open[b] = 1'b1;
                    open_row[b] = address[ROW_BITS-1:0];
                    bank_act[b] = t;
                    group_act[g] = t;
                    last_act = t;
                    recent_act[recent_act_at] = t;
                    recent_act_at = recent_act_at + 2'd1;
                    bank_rd[b] = NEVER;
                    bank_wr[b] = NEVER;
                end
                PRE: precharge(b, t);
                PREA: begin
                    /* verilator unroll_disable */
                    for (i = 0; i < BANKS; i = i + 1) precharge(i, t);
                end
                RD, RDA: begin
                    if (!open[b]) violate(8'd2);
                    check_column(b, address, t);
                    if (t - last_rd < T_CCD_S) violate(8'd18);
                    if (t - group_rd[g] < T_CCD_L) violate(8'd19);
                    if (t - last_wr < CWL + BURST + T_WTR_S) violate(8'd12);
                    if (t - group_wr[g] < CWL + BURST + T_WTR_L) violate(8'd13);
                    if (t + CL < bus_end) violate(8'd23);
                    bus_end = t + CL + BURST;
                    bank_rd[b] = t;
                    group_rd[g] = t;
                    last_rd = t;
                    if (command == RDA) auto_precharge(b);
                    // Sampled at the edge that ends the cycle before the data is shown.
                    due = ((t + CL + BURST + 3) >>> 2) - 1;
                    at = due[RING_BITS-1:0];
                    read_due[at] = 1'b1;
                    read_index[at] =
                        {group, bank, open_row[b], address[COLUMN_BITS-1:BURST_COLUMN_BITS]};
                end
                WR, WRA: begin
                    if (!open[b]) violate(8'd3);
                    check_column(b, address, t);
                    if (t - last_wr < T_CCD_S) violate(8'd18);
                    if (t - group_wr[g] < T_CCD_L) violate(8'd19);
                    if (t - last_rd < READ_TO_WRITE) violate(8'd20);
                    if (t + CWL < bus_end) violate(8'd23);
                    bus_end = t + CWL + BURST;
                    bank_wr[b] = t;
                    group_wr[g] = t;
                    last_wr = t;
                    if (command == WRA) auto_precharge(b);
                    due = (t + CWL) >>> 2;
                    at = due[RING_BITS-1:0];
                    write_due[at] = 1'b1;
                    write_index[at] =
                        {group, bank, open_row[b], address[COLUMN_BITS-1:BURST_COLUMN_BITS]};
                end
                REF: begin
                    if (open != 0) violate(8'd16);
                    /* verilator unroll_disable */
                    for (i = 0; i < BANKS; i = i + 1)
                        if (t - bank_pre[i] < T_RP) violate(8'd4);
                    if (CHECK_REFRESH != 0) begin
                        if (t - last_ref > (MAX_POSTPONED + 1) * T_REFI && last_ref != NEVER)
                            violate(8'd17);
                        if (MAX_POSTPONED != 0 && t - recent_ref[recent_ref_at] < 2 * T_REFI)
                            violate(8'd24);
                    end
                    recent_ref[recent_ref_at] = t;
                    recent_ref_at = recent_ref_at + 4'd1;
                    last_ref = t;
                    if (MAX_POSTPONED == 0) next_due = t + T_REFI;
                    else if (owed > -MAX_POSTPONED) owed = owed - 1;
                end
                default: violate(8'd25);
            endcase
            // A refresh at the very clock at which it would be overdue still counts.
            if (t == next_due) begin
                owed = owed + 1;
                next_due = t + T_REFI;
                if (CHECK_REFRESH != 0 && owed > MAX_POSTPONED) violate(8'd17);
            end
            if (bad_code != 0 && !bad) begin
                bad = 1'b1;
                bad_tck = t[47:0];
`ifndef NEARMEM_FAULTS
                $display("%m: tCK %0d: command %0d group %0d bank %0d address %0d breaks %0s",
                         t, command, group, bank, address, RULES[16*8*bad_code +: 16*8]);
`endif
            end
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
                bank_pre[i] = NEVER;
                bank_rd[i] = NEVER;
                bank_wr[i] = NEVER;
            end
            /* verilator unroll_disable */
            for (i = 0; i < GROUPS; i = i + 1) begin
                group_act[i] = NEVER;
                group_rd[i] = NEVER;
                group_wr[i] = NEVER;
            end
            /* verilator unroll_disable */
            for (i = 0; i < 4; i = i + 1) recent_act[i] = NEVER;
            /* verilator unroll_disable */
            for (i = 0; i < 16; i = i + 1) recent_ref[i] = NEVER;
            last_act = NEVER;
            last_rd = NEVER;
            last_wr = NEVER;
            last_ref = NEVER;
            bus_end = NEVER;
            recent_act_at = 0;
            recent_ref_at = 0;
            owed = 0;
            next_due = T_REFI;
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
        for (i = 0; i < BURSTS; i = i + 1) mem[i] = 0;
    end

    always @(posedge clk) begin
        if (rst) restart;
        else begin
            if (commands != 0 || next_due[63:2] == cycle) begin
                // A loop, so that the simulator has to compile the rules once only.
                /* verilator unroll_disable */
                for (slot = 0; slot < 4; slot = slot + 1)
                    if (commands[3*slot +: 3] != NOP || next_due == {cycle, slot[1:0]})
                        step(commands[3*slot +: 3],
                             groups[GROUP_BITS*slot +: GROUP_BITS],
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
                read_data <= {(DATA_BYTES / 4){POISON}};
                poisoned <= 1'b1;
            end
            if (write_due[now]) begin
                write_due[now] = 1'b0;
                if (write_mask == 0) mem[write_index[now]] = write_data;
                else begin
                    /* verilator unroll_disable */
                    for (i = 0; i < DATA_BYTES; i = i + 1)
                        if (!write_mask[i])
                            mem[write_index[now]][8*i +: 8] = write_data[8*i +: 8];
                end
            end
            cycle = cycle + 1;
        end
        violation <= bad;
        violation_code <= bad_code;
        violation_tck <= bad_tck;
    end
endmodule
