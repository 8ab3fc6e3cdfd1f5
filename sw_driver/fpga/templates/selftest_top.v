// The self test of @@name on @@board. Light 0 shows that it passed, light 1 that it failed, and light
// 7 blinks. The button starts it again.
module @@{name}_@@top (
    input  wire @@clock,
    input  wire button,
    output wire [7:0] led
);
  // The button is asynchronous; the reset made from it is not.
  (* ASYNC_REG = "TRUE" *) reg [1:0] pressed = 0;
  reg [3:0] settled = 0;
  reg rst = 1;
  reg [23:0] count = 0;
  always @(posedge @@clock) begin
    pressed <= {pressed[0], button};
    settled <= pressed[1] ? 4'd0 : settled == 15 ? 4'd15 : settled + 1'b1;
    rst <= settled != 15;
    count <= count + 1'b1;
  end

  wire done, pass;
  @@{name}_selftest selftest (.clk(@@clock), .rst(rst), .done(done), .pass(pass));
  assign led = {count[23], 5'b0, done && !pass, done && pass};
endmodule
