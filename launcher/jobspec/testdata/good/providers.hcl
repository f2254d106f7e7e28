# Several providers, their own attributes and blocks, and an elastic world with every word that is not a default.
job "several" {
  provider "aws" {
    regions              = ["us-east-1"]
    subnet               = "subnet-1"
    profile              = "research"
    usd_per_hour         = 1.5
    self_delete_identity = "launcher-delete"
    price_factor         = 0.5
    head {
      instance_type = "t3.small"
      identity      = "aws-head"
    }
    workers {
      instance_type = "p3.8xlarge"
      vm_image      = "ami-1"
      identity      = "aws-data"
    }
    mount "/data" {
      type   = "efs"
      source = "fs-0123abcd"
    }
  }
  provider "local" {
    root         = "~/machines"
    zones        = ["x", "y"]
    capacity     = "4"
    usd_per_hour = { spot = 0.01, on_demand = 0.02 }
  }
  provider "ssh" {
    hosts    = ["10.0.0.1", "10.0.0.2:2222"]
    key      = "keys/id_ed25519"
    host_key = ["10.0.0.1 ssh-ed25519 AAAA", "[10.0.0.2]:2222 ssh-ed25519 AAAA"]
  }
  provider "open" {
    anything = { a = [1, "two", { three = true }], b = "<&>" }
    nothing  = null
  }
  placement {
    prefer    = "listed"
    same_zone = "no"
  }
  network {
    egress   = "nat"
    ssh_from = ["caller", "10.1.0.0/16", "2001:db8::/32"]
    fabric   = "none"
  }
  head {
    instance_type = "m5.large"
    supervisor    = "client"
  }
  workers {
    min        = 2
    max        = 6
    cpus       = 8
    memory_gib = 32
    market     = "spot_or_on_demand"
    spares     = 1
  }
  mount "/data" {
    type   = "nfs"
    source = "10.0.0.4:/export"
  }
  mount "/models" {
    type   = "s3"
    source = "s3://models/v1"
  }
  run "torchrun" {
    command        = "torchrun --local-ranks-filter 0 train.py --nnodes 9"
    procs_per_node = 2
    elasticity     = "torchrun"
  }
  elastic {
    start_wait   = "0s"
    lost_after   = "1500ms"
    grow_every   = "1h30m"
    below_min    = "5m"
    max_restarts = 0
  }
  preemption {
    signal = "SIGTERM"
    grace  = "90s"
  }
  checkpoint {
    path = "/scratch/ckpt/"
    to   = "gs://bucket/ckpt"
    keep = 1
  }
  container {
    image = "1.dkr.ecr.us-east-1.amazonaws.com/train:1"
    login = "ecr"
  }
  outputs {
    from  = "./out/"
    to    = "azblob://container/results"
    nodes = "all"
  }
  limits {
    max_usd_per_hour = 3
    max_duration     = "90m"
    start_timeout    = "10m"
    node_lease       = "30s"
    hold_results     = "0s"
    unbounded_leak   = true
  }
}
