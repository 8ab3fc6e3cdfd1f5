// Writes every DRAM command to FILE in the working directory, below the two lines of HEADER, one
// line each: tck,0,command,group,bank,row,column (0 is the number of the channel or vault). What a
// command does not carry is left empty. A reset starts the file anew; flush brings it up to date.
// The codes of the commands are parameters; one above 7 is of a command that there is not.
module command_trace #(
    parameter integer GROUP_BITS = 2,
    parameter integer BANK_BITS = 2,
    parameter integer ADDRESS_BITS = 10,
    parameter [3:0] ACT = 1,
    parameter [3:0] PRE = 8,
    parameter [3:0] PREA = 9,
    parameter [3:0] RD = 4,
    parameter [3:0] RDA = 10,
    parameter [3:0] WR = 5,
    parameter [3:0] WRA = 11,
    parameter [3:0] REF = 6,
    parameter FILE = "trace.csv",
    parameter HEADER = ""
) (
    input wire                      clk,
    input wire                      rst,
    input wire                      flush,
    input wire [4*3-1:0]            commands,
    input wire [4*GROUP_BITS-1:0]   groups,
    input wire [4*BANK_BITS-1:0]    banks,
    input wire [4*ADDRESS_BITS-1:0] addresses
);
    integer file;
    integer slot;
    reg [63:0] tck;

    initial file = 0;

    task put(input [63:0] at, input [3:0] command, input [GROUP_BITS-1:0] group,
             input [BANK_BITS-1:0] bank, input [ADDRESS_BITS-1:0] address);
        case (command)
            0: ;
            ACT: $fdisplay(file, "%0d,0,ACT,%0d,%0d,%0d,", at, group, bank, address);
            PRE: $fdisplay(file, "%0d,0,PRE,%0d,%0d,,", at, group, bank);
            PREA: $fdisplay(file, "%0d,0,PREA,,,,", at);
            RD: $fdisplay(file, "%0d,0,RD,%0d,%0d,,%0d", at, group, bank, address);
            RDA: $fdisplay(file, "%0d,0,RDA,%0d,%0d,,%0d", at, group, bank, address);
            WR: $fdisplay(file, "%0d,0,WR,%0d,%0d,,%0d", at, group, bank, address);
            WRA: $fdisplay(file, "%0d,0,WRA,%0d,%0d,,%0d", at, group, bank, address);
            REF: $fdisplay(file, "%0d,0,REF,,,,", at);
            default: $fdisplay(file, "%0d,0,UNKNOWN,,,,", at);
        endcase
    endtask

    always @(posedge clk) begin
        if (rst) begin
            tck <= 0;
            if (file == 0 || tck != 0) begin
                if (file != 0) $fclose(file);
                file = $fopen(FILE, "w");
                $fdisplay(file, "%0s", HEADER);
            end
        end else begin
            if (flush) $fflush(file);
            tck <= tck + 4;
            if (commands != 0)
                for (slot = 0; slot < 4; slot = slot + 1)
                    put(tck + slot, commands[3*slot +: 3], groups[GROUP_BITS*slot +: GROUP_BITS],
                        banks[BANK_BITS*slot +: BANK_BITS],
                        addresses[ADDRESS_BITS*slot +: ADDRESS_BITS]);
        end
    end
endmodule
