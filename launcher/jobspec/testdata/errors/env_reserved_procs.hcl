job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = {
    LOCAL_WORLD_SIZE = 2 # error: Reserved variable "LOCAL_WORLD_SIZE"
    PET_MAX_RESTARTS = 2 # error: Reserved variable "PET_MAX_RESTARTS"
    TORCHELASTIC_RUN_ID = 2 # error: Reserved variable "TORCHELASTIC_RUN_ID"
  }
}
