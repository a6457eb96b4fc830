# Contexts run side by side, each with variables, a language and a directory of its own.
from e2b_code_interpreter import Sandbox

sandbox = Sandbox.create()
try:
    context = sandbox.create_code_context(cwd="/tmp")
    sandbox.run_code("name = 'default'")
    sandbox.run_code("name = 'own'", context=context)
    print(sandbox.run_code("name").text, sandbox.run_code("name", context=context).text)

    sandbox.restart_code_context(context)
    print("after a restart:", sandbox.run_code("'name' in globals()", context=context).text)

    shell = sandbox.run_code("for n in 1 2 3; do echo -n $n; done", language="bash")
    print("bash:", "".join(shell.logs.stdout))

    sandbox.remove_code_context(context)
    ids = [known.id for known in sandbox.list_code_contexts()]
    print("removed:", str(context.id not in ids).lower())
finally:
    sandbox.kill()
