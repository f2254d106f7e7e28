job "demo" {
  provider "locl" {} # error: Unknown provider "locl"
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
