"""Published datasets: records, workloads and devices as files that anybody can read, check and open."""
