# Variables of all kinds, functions, and HCL's own conversions.
# var: epochs=7
# var: regions=["eu-west-1", "eu-north-1"]
# var: max=8
# var: name=12
# var: spot=false
# env: USER=ada
variable "epochs" {
  default = 3
}
variable "regions" {
  default     = ["us-east-1"]
  description = "where"
}
variable "max" {
  type = number
}
variable "name" {}
variable "spot" {
  default = true
}
variable "lease" {
  type    = string
  default = null
}
variable "tags" {
  type    = map(string)
  default = { team = "vision", floor = 3 }
}

job "expr" {
  tags = merge(var.tags, { owner = env("USER"), host = try(env("NO_SUCH_HOST"), "unknown") })

  provider "aws" {
    regions = [for r in var.regions : lower(r)]
  }
  workers {
    min    = "2"
    max    = var.max
    gpu    = format("%s:%d", "A100-80GB", 8)
    market = var.spot ? "spot" : "on_demand"
  }
  setup = join("\n", ["set -x", chomp(file("setup.sh"))])
  env = {
    EPOCHS = var.epochs
    DEBUG  = true
    RATIO  = 0.1
    NAME   = var.name
    LIST   = jsonencode(["<a>", "b&c"])
    UNSET  = null
  }
  run "ranks" {
    command        = <<-EOT
      python train.py \
        --epochs ${var.epochs}
    EOT
    procs_per_node = "2"
  }
  limits {
    budget_usd = "12.5"
    node_lease = var.lease
  }
}
