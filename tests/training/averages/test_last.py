from afield.training.averages.last import Last


def test_the_deployed_model_is_the_trained_one(model):
    average = Last()
    average.setup(model, steps=100)
    average.after_step(model)
    assert average.model is model
