-- TACC's submission filter: it greets and refuses on stdout, in front of sbatch's own line, --parsable or not.
-- The four "Submission error" lines for -p, -n, -N and -t are TACC's; the one for --mem is ours (TACC's pages only list the option as
-- one that jobs must not use). --gres and --gpus-per-task need no rule: Slurm knows no such resource there.
local RULE = string.rep("-", 65)

local function refuse(words)
  print("--> Submission error: " .. words .. "\n")
  return slurm.ERROR
end

-- options[name] has numbers of Slurm's own where nothing was asked; only the JSON form says what was.
local function asked(options, name)
  return string.find(slurm.json_cli_options(options), '"' .. name .. '":', 1, true) ~= nil
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
  print(RULE .. "\n          Welcome to the Vista Supercomputer\n" .. RULE .. "\n")
  print("No reservation for this job\n--> Verifying valid submit host (login1)...OK\n--> Verifying valid jobname...OK")
  if not asked(options, "partition") then
    return refuse('all jobs must have a queue name specified with "-p"')
  elseif not asked(options, "ntasks") and not asked(options, "ntasks-per-node") then
    return refuse('please define total core count with the "-n" option')
  elseif not asked(options, "nodes") then
    return refuse('please define total node count with the "-N" option')
  elseif not asked(options, "time") then
    return refuse('all jobs must have a maximum runlimit defined with "-t"')
  elseif asked(options, "mem") then
    return refuse('the option "--mem" is not supported')
  end
  print("--> Verifying access to desired queue (" .. options["partition"] .. ")...OK")
  print("--> Checking available allocation (" .. tostring(options["account"]) .. ")...OK")
  return slurm.SUCCESS
end

function slurm_cli_post_submit(pack_offset, job_id, step_id)
  return slurm.SUCCESS
end

return slurm.SUCCESS
