// Writes every command to a vault to FILE in the working directory, one line each:
// tck,command,layer,bank,row,column. What a command does not carry is left empty.
// A reset starts the file anew; flush brings it up to date.
module vault_trace #(
    parameter integer LAYER_BITS = 3,
    parameter integer BANK_BITS = 1,
    parameter integer ADDRESS_BITS = 3,
    parameter FILE = "vault_trace.csv",
    parameter HEADER = ""
) (
    input wire                    clk,
    input wire                    rst,
    input wire                    flush,
    input wire [2:0]              command_p0,
    input wire [LAYER_BITS-1:0]   layer_p0,
    input wire [BANK_BITS-1:0]    bank_p0,
    input wire [ADDRESS_BITS-1:0] address_p0,
    input wire [2:0]              command_p1,
    input wire [LAYER_BITS-1:0]   layer_p1,
    input wire [BANK_BITS-1:0]    bank_p1,
    input wire [ADDRESS_BITS-1:0] address_p1,
    input wire [2:0]              command_p2,
    input wire [LAYER_BITS-1:0]   layer_p2,
    input wire [BANK_BITS-1:0]    bank_p2,
    input wire [ADDRESS_BITS-1:0] address_p2,
    input wire [2:0]              command_p3,
    input wire [LAYER_BITS-1:0]   layer_p3,
    input wire [BANK_BITS-1:0]    bank_p3,
    input wire [ADDRESS_BITS-1:0] address_p3
);
    integer file;
    reg [63:0] tck;

    initial file = 0;

    task put(input [63:0] at, input [2:0] command, input [LAYER_BITS-1:0] layer,
             input [BANK_BITS-1:0] bank, input [ADDRESS_BITS-1:0] address);
        case (command)
            0: ;
            1: $fdisplay(file, "%0d,ACT,%0d,%0d,%0d,", at, layer, bank, address);
            2: $fdisplay(file, "%0d,RD,%0d,%0d,,%0d", at, layer, bank, address);
            3: $fdisplay(file, "%0d,RDA,%0d,%0d,,%0d", at, layer, bank, address);
            4: $fdisplay(file, "%0d,WR,%0d,%0d,,%0d", at, layer, bank, address);
            5: $fdisplay(file, "%0d,WRA,%0d,%0d,,%0d", at, layer, bank, address);
            6: $fdisplay(file, "%0d,REF,,,,", at);
            default: $fdisplay(file, "%0d,UNKNOWN,,,,", at);
        endcase
    endtask

    always @(posedge clk) begin
        if (rst) begin
            tck <= 0;
            if (file == 0 || tck != 0) begin
                if (file != 0) $fclose(file);
                file = $fopen(FILE, "w");
                $fdisplay(file, "%0s", HEADER);
                $fdisplay(file, "tck,command,layer,bank,row,column");
            end
        end else begin
            if (flush) $fflush(file);
            tck <= tck + 4;
            if ({command_p0, command_p1, command_p2, command_p3} != 0) begin
                put(tck, command_p0, layer_p0, bank_p0, address_p0);
                put(tck + 1, command_p1, layer_p1, bank_p1, address_p1);
                put(tck + 2, command_p2, layer_p2, bank_p2, address_p2);
                put(tck + 3, command_p3, layer_p3, bank_p3, address_p3);
            end
        end
    end
endmodule
